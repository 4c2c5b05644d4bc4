"""A teacher of one's own: trained for real, killed and gone on with, blind to validation documents, and taken by a capture."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tiny_teacher import WORDS, write_parquet

from pipeline.contract.atomic_io import publish
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.run_record import RunFolder
from pipeline.contract.schedule import learning_rate
from stage1_teacher.training import train_teacher as loop
from stage1_teacher.training.job import TeacherJob
from stage1_teacher.training.small_qwen3 import new_model, summed_cross_entropy

ROOT = Path(__file__).parents[2]
TRAINING = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "steps": 12,
    "global_batch_size": 8,
    "micro_batch_tokens": 128,
    "learning_rate": 1e-2,
    "eval_interval": 5,
    "checkpoint_interval": 4,
}
EVERY = 5
"""Of twenty documents the first, and each fifth after it, are for validation."""


def texts(of_validation: str = "") -> list[str]:
    """Sixty documents of six to thirty words; `of_validation` is put before those of validation."""
    words = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(6 + i % 25)) for i in range(60)]
    return [of_validation + text if i % EVERY == 0 and i < 4 * EVERY else text for i, text in enumerate(words)]


def settings(folder: Path, documents: list[str], **training) -> dict:
    files = write_parquet(folder / "documents.parquet", documents)
    return {
        "name": "tiny",
        "teacher": {"model": "trained:tiny", "training": TRAINING | training},
        "documents": {
            "source": "parquet",
            "files": [str(files)],
            "limit": 50,
            "validation": {"documents": 4, "every": EVERY},
            "max_length": 48,
        },
        "targets": {"k": 8},
        "cache": {"documents_per_shard": 16, "threads": 1},
    }


def job_in(folder: Path, documents: list[str], **training) -> TeacherJob:
    folder.mkdir(parents=True, exist_ok=True)
    return TeacherJob(ShardManifest.model_validate(settings(folder, documents, **training)), RunFolder(folder / "teachers/tiny"))


def train(folder: Path, documents: list[str] | None = None, **training) -> tuple[TeacherJob, dict]:
    job = job_in(folder, documents or texts(), **training)
    return job, loop.train_teacher(job)


def model_files(job: TeacherJob) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(job.model.iterdir())}


def curve(job: TeacherJob, kind: str = "train") -> list[dict]:
    """What happened, but for how fast."""
    records = [record for record in job.record.metrics() if record["kind"] == kind]
    return [{key: value for key, value in record.items() if not key.startswith("perf/")} for record in records]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return train(tmp_path_factory.mktemp("trained"))


def test_the_loss_falls_and_everything_is_on_record(trained):
    job, result = trained
    losses = [record["train/loss"] for record in curve(job)]
    assert abs(losses[0] - np.log(300)) < 0.1 and losses[-1] < losses[0] - 0.5
    assert [record["step"] for record in curve(job)] == list(range(1, 13))
    assert [record["optim/lr"] for record in curve(job)] == [learning_rate(step, job.training) for step in range(12)]
    assert [record["step"] for record in curve(job, "val")] == [0, 5, 10, 12]
    assert result["val_ce"] < result["val_ce_start"] - 0.5 and result["val_ppl"] == pytest.approx(np.exp(result["val_ce"]))
    assert result["documents"] == {"train": 50, "validation": 4} and result["steps_executed"] == 12
    assert result["tokens"] == sum(record["tokens"] for record in curve(job))
    (start,) = job.record.read("provenance")
    assert start["packages"]["torch"] and start["device"] == "cpu" and "commit" in start
    assert job.record.read("config")["teacher.training.learning_rate"] == 1e-2
    assert not job.checkpoint.exists()


def test_the_folder_is_a_model_as_any_other(trained):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    job, result = trained
    model, tokenizer = AutoModelForCausalLM.from_pretrained(job.model), AutoTokenizer.from_pretrained(job.model)
    config = model.config
    assert (config.model_type, config.vocab_size, config.hidden_size, config.head_dim) == ("qwen3", 300, 32, 8)
    assert not config.tie_word_embeddings and sum(p.numel() for p in model.parameters()) == result["parameters"]
    text = "word1 any text, \N{SNOWMAN} and bytes"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text and len(tokenizer) == 300
    # its cross-entropy on the validation documents, one by one and in float64, is the recorded one
    documents = [f"{text}<|endoftext|>" for text in (t for i, t in enumerate(texts()) if i % EVERY == 0 and i < 4 * EVERY)]
    total = count = 0.0
    for ids in (torch.tensor([tokenizer(text)["input_ids"][:48]]) for text in documents):
        with torch.no_grad():
            logprobs = model.double()(ids).logits[0, :-1].log_softmax(-1)
        total, count = total - logprobs.gather(1, ids[0, 1:, None]).sum().item(), count + ids.shape[1] - 1
    assert result["validation_tokens"] == count and result["val_ce"] == pytest.approx(total / count, rel=1e-5)


def test_validation_documents_are_not_seen(trained, tmp_path):
    """Other validation documents, in bytes that no other document has, change no merge and no weight."""
    other, result = train(tmp_path, texts("\N{SNOWMAN}" * 9))
    assert model_files(other) == model_files(trained[0]) and curve(other) == curve(trained[0])
    assert result["val_ce"] != trained[1]["val_ce"]
    third, _ = train(tmp_path / "seen", ["\N{SNOWMAN}" * 9 + text for text in texts()])
    assert model_files(third)["tokenizer.json"] != model_files(trained[0])["tokenizer.json"]  # the comparison can see


def test_batches_are_cut_without_a_trace(trained, tmp_path):
    """A step's mean is over its target tokens, however they are padded and cut: one micro-batch, or a document each."""
    for budget in (1, 10**6):
        other, _ = train(tmp_path / str(budget), micro_batch_tokens=budget)
        ours, theirs = ([record["train/loss"] for record in curve(job)] for job in (trained[0], other))
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
        assert [r["tokens"] for r in curve(other)] == [r["tokens"] for r in curve(trained[0])]


def test_the_gradient_is_that_of_a_plain_float64_mean():
    job = ShardManifest.model_validate({"name": "x", **settings_without_files()})
    model = new_model(job.teacher.training, 48, 0).double()
    documents = [np.arange(1, length + 1, dtype=np.int32) for length in (2, 7, 31)]
    summed_cross_entropy(model, documents, torch.device("cpu")).backward()
    ours = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for ids in documents:
        row = torch.from_numpy(ids.astype(np.int64))[None]
        logprobs = model(row).logits[0, :-1].log_softmax(-1)
        (-logprobs.gather(1, row[0, 1:, None]).sum()).backward()
    assert all(torch.allclose(ours[name], p.grad, rtol=1e-9, atol=1e-11) for name, p in model.named_parameters())
    assert all(grad.abs().sum() > 0 for name, grad in ours.items())


def settings_without_files() -> dict:
    documents = {"source": "text", "files": ["x"], "limit": 1, "validation": {"documents": 1}}
    return {"teacher": {"model": "trained:x", "training": TRAINING}, "documents": documents}


DIES = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/tests", sys.argv[1] + "/tests/stage1_teacher"]
import test_train_teacher as case
job = case.job_in(Path(sys.argv[2]), case.texts())
case.loop.train_teacher(job, lambda record: os.kill(os.getpid(), signal.SIGKILL) if record["step"] == 7 else None)
"""


def test_killed_and_run_again_it_ends_in_the_same_bytes(trained, tmp_path):
    """In a step after a checkpoint, by SIGKILL; then between any two publications, by an exception that nothing catches."""
    done = subprocess.run([sys.executable, "-c", DIES, str(ROOT), str(tmp_path)], env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL
    job = job_in(tmp_path, texts())
    assert job.checkpoint.exists() and not job.model.exists()
    with job.record.metrics_path.open("a") as torn:
        torn.write('{"kind": "tra')
    result = loop.train_teacher(job)
    assert (result["resumed_from"], result["steps_executed"]) == (4, 8)
    assert model_files(job) == model_files(trained[0])
    assert curve(job) == curve(trained[0]) and curve(job, "val") == curve(trained[0], "val")
    assert [start["resumed_from"] for start in job.record.read("provenance")] == [0, 4]


class Death(BaseException):
    pass


def test_dying_around_any_publication_it_goes_on(trained, tmp_path, monkeypatch):
    """Checkpoints and records too: before the rename and after it, each time one later, until nothing is left to die at."""
    job, survived = job_in(tmp_path, texts(), steps=5, checkpoint_interval=2), 0
    reference, _ = train(tmp_path / "reference", steps=5, checkpoint_interval=2)
    for point in range(60):
        shutil.rmtree(job.record.path, ignore_errors=True)
        with monkeypatch.context() as patch:
            left = [point // 2]

            def dying(temporary, path, left=left, after=point % 2):
                if left[0] == 0 and not after:
                    raise Death
                publish(temporary, path)
                if left[0] == 0:
                    raise Death
                left[0] -= 1

            patch.setattr("pipeline.contract.atomic_io.publish", dying)
            try:
                loop.train_teacher(job)
                survived = point
            except Death:
                pass
        if survived:
            break
        loop.train_teacher(job)
        assert model_files(job) == model_files(reference) and curve(job) == curve(reference), point
        assert {path.name for path in job.record.path.iterdir()} == {path.name for path in reference.record.path.iterdir()}, point
    assert survived == 2 * 8  # config, tokenizer, kept metrics, start, two checkpoints, model, result


def test_a_finished_teacher_stays(pipeline, tmp_path):
    shard = write_yaml(tmp_path)
    first = run(pipeline, "train-teacher", "--shard", shard)
    again = run(pipeline, "train-teacher", "--shard", shard, "--set", "documents.limit=40")
    assert again["steps_executed"] == 0 and again["files"] == first["files"]
    for changed, named in (("teacher.training.steps=9", "steps was 12, is 9"), ("documents.max_length=30", "max_length was 48, is 30")):
        code, _, err = pipeline("train-teacher", "--shard", shard, "--set", changed)
        assert code == 2 and named in err and "move the folder away" in err and err.count("\n") == 1
    write_parquet(tmp_path / "documents.parquet", texts()[::-1])
    code, _, err = pipeline("train-teacher", "--shard", shard)
    assert code == 2 and "documents.content was" in err


def test_a_capture_takes_it(pipeline, tmp_path):
    shard = write_yaml(tmp_path)
    code, _, err = pipeline("cache-teacher", "--shard", shard)
    assert code == 2 and "run 'pipeline train-teacher --shard tiny'" in err and err.count("\n") == 1
    teacher = run(pipeline, "train-teacher", "--shard", shard)
    captured = run(pipeline, "cache-teacher", "--shard", shard)
    assert captured["splits"]["validation"]["documents"] == 4
    assert run(pipeline, "cache", "verify", "--shard", shard, "--deep")["ok"]
    other = run(pipeline, "cache-teacher", "--shard", shard, "--set", "name=other", "--set", "targets.k=4")  # trained:tiny as before
    assert other["cache"].endswith("caches/other") and other["fingerprint"] != captured["fingerprint"]
    shutil.rmtree(tmp_path / "artifacts/teachers")  # students need none of it
    student = ["--set", "steps=1", "--set", "global_batch_size=4", "--set", "model.blocks=1", "--set", "model.layers_per_block=1"]
    trained = run(pipeline, "train", "--shard", shard, *student)
    assert trained["teacher_ce"] == pytest.approx(teacher["val_ce"], rel=1e-4)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ("teacher.training.vocab_size=20000", ["vocab_size=20000", "the training documents give", "more documents"]),
        ("teacher.training.vocab_size=200", ["vocab_size", "257"]),
        ("teacher.training.hidden_size=36", ["hidden_size=36", "num_attention_heads=4"]),
        ("teacher.training.num_key_value_heads=3", ["num_key_value_heads=3"]),
        ("teacher.training.stepz=3", ["nearest known key is 'teacher.training.steps'"]),
        ("teacher.training.learning_rate=1e30", ["not finite", "--set teacher.training.learning_rate="]),
        ("teacher.model=trained:../x", ["trained:"]),
        ("documents.files=nowhere.parquet", ["nowhere.parquet"]),
        ("documents.limit=0", ["documents.limit"]),
        ("documents.max_length=1", ["documents.max_length"]),
        ("steps=3", ["steps=3", "teacher.training.KEY"]),
    ],
)
def test_bad_input_is_one_line(pipeline, tmp_path, change, parts):
    code, out, err = pipeline("train-teacher", "--shard", write_yaml(tmp_path), "--set", change)
    last = err.strip().splitlines()[-1]
    assert code == 2 and not out and last.startswith("error: ") and all(part in last for part in parts), err


def test_documents_without_a_token_to_predict(pipeline, tmp_path):
    shard = write_yaml(tmp_path, documents=["word " * 200])
    code, _, err = pipeline("train-teacher", "--shard", shard)
    assert code == 2 and err.startswith("error: "), err


def test_a_damaged_checkpoint_is_named(tmp_path):
    job = job_in(tmp_path, texts())
    job.record.path.mkdir(parents=True)
    job.checkpoint.write_bytes(b"not a checkpoint")
    with pytest.raises(loop.TeacherError, match=r"cannot be read.*remove it"):
        loop.train_teacher(job)


def write_yaml(folder: Path, documents: list[str] | None = None) -> str:
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(folder, documents or texts())), encoding="utf-8")
    return str(path)


def run(pipeline, *arguments):
    code, out, err = pipeline(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)
