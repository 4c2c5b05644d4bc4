"""An audit passes a fresh cache, whatever it keeps and however it is coded, and fails one that is not its teacher's, naming the row."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from captures import as_store, parquet, reference, shard, take, write_shard_yaml
from tiny_teacher import text, write_teacher

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.index import MANIFEST
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import sealed_bytes
from stage1_teacher.auditing.audit import AuditRequest, audit, compare, spread_sample
from stage1_teacher.auditing.figures import ratio
from stage1_teacher.auditing.rows import compare_rows, score_live
from stage1_teacher.auditing.rule import checks
from stage1_teacher.engines.transformers_engine import TransformersEngine
from stage1_teacher.teacher_files import TeacherFiles

VOCAB = 300
TARGETS = {
    "topk": {"k": 30},
    "threshold": {"mode": "threshold", "k": 255, "c": 0.004, "entropy": True},
    "sampled": {"mode": "sampled", "c": 1 / 64},
    "temperatures": {"k": 30, "temperatures": [1.0, 2.0]},
}
LAYOUT = {"documents_per_shard": 7}
CACHES = [(mode, codec) for mode in TARGETS for codec in ("raw", "plain", "ranks")] + [("sampled", "streams")]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("audit")
    write_teacher(folder / "teacher", vocab_size=VOCAB)
    write_teacher(folder / "other", vocab_size=VOCAB, seed=1)
    parquet(folder, ["word1", *(text(6 + 3 * i % 17, i) for i in range(40))])
    return folder


def manifest(home, mode, codec="plain", **sections):
    return shard(home / "teacher", home / "documents.parquet", targets=TARGETS[mode], cache={**LAYOUT, "codec": codec}, **sections)


@pytest.fixture(scope="module")
def caches(home):
    """A cache of each kind, captured when it is asked for."""
    made: dict[tuple[str, str], Path] = {}

    def cache(mode, codec="plain"):
        if (mode, codec) not in made:
            made[mode, codec] = home / f"{mode}-{codec}"
            take(manifest(home, mode, codec), made[mode, codec])
        return made[mode, codec]

    return cache


@pytest.fixture(scope="module")
def engine(home):
    return TransformersEngine(TeacherFiles(home / "teacher"), manifest(home, "topk"))


def captured(cache):
    return ShardManifest.model_validate(LogitCache.open(cache).manifest.shard)


def audited(engine, cache, documents=(1, 5, 8, 9, 13)):
    return compare(engine, LogitCache.open(cache), documents)


def reseal(engine, cache, folder, change, only=None):
    """A copy of the cache whose training documents are scored anew, changed, coded and sealed: every hash is right."""
    copy = Path(shutil.copytree(cache, folder))
    opened = LogitCache.open(copy)
    ids = [np.array(opened[index].token_ids) for index in range(len(opened))]
    documents = [
        change(document) if only in (None, index) else document for index, document in enumerate(engine.score(ids, opened.targets))
    ]
    shards, first = [], 0
    for old in opened.record.shards:
        part = documents[first : first + old.documents]
        options = {"first_document": first, "tokens_per_batch": 64, "skipped": old.skipped, "made_by": old.made_by}
        shards.append(write_shard(as_store(copy), opened.codec, "train", old.index, part, **options))
        first += old.documents
    splits = opened.manifest.splits | {"train": opened.record.model_copy(update={"shards": shards})}
    as_store(copy).write_bytes(MANIFEST, sealed_bytes(opened.manifest.model_copy(update={"splits": splits}).model_dump()))
    return copy


def with_rows(document, order):
    """The document with other rows of it in the places of its own."""
    ends = np.cumsum(document.counts, dtype=np.int64)
    places = np.concatenate([np.arange(ends[row] - document.counts[row], ends[row]) for row in order])
    rows = {name: getattr(document, name) for name in ("counts", "tail_logprob", "label_logprob", "drawn", "entropy", "tail_square")}
    moved = {name: None if values is None else values[order] for name, values in rows.items()}
    others = {tau: tail[order] for tau, tail in document.other_tails.items()}
    return replace(document, ids=document.ids[places], logprobs=document.logprobs[places], other_tails=others, **moved)


def later(document):
    return with_rows(document, [*range(1, document.tokens), document.tokens - 1])


def earlier(document):
    return with_rows(document, [0, *range(document.tokens - 1)])


def other_label(document):
    return replace(document, label_logprob=document.label_logprob - np.float32(0.03))


def other_values(document):
    """Every second entry a tenth more probable."""
    louder = np.where(np.arange(len(document.ids)) % 2, 0.1, 0.0).astype(np.float32)
    return replace(document, logprobs=document.logprobs + louder)


def other_ids(document):
    return replace(document, ids=(document.ids + 1) % VOCAB)


def other_entropy(document):
    return replace(document, entropy=document.entropy + np.float32(0.05))


def swapped_tails(document):
    return replace(document, tail_logprob=document.other_tails[2.0], other_tails={2.0: document.tail_logprob})


@pytest.mark.parametrize(("mode", "codec"), CACHES)
def test_a_fresh_cache_is_ok(engine, caches, mode, codec):
    found = audited(engine, caches(mode, codec))
    assert found.ok and found.problem is None and found.cause is None
    assert found.bands["all"]["top1_agreement"] > (0.9 if mode == "sampled" else 0.999)
    assert 0 < found.control["label_logprob_difference_max"] < 1e-5
    assert found.bands["all"]["rows"] == found.rows == sum(band["rows"] for name, band in found.bands.items() if name != "all")


@pytest.mark.parametrize("mode", TARGETS)
def test_a_resealed_copy_is_ok(engine, caches, tmp_path, mode):
    """So what fails below fails for the change, and not for the copying."""
    assert audited(engine, reseal(engine, caches(mode, "ranks"), tmp_path / "copy", lambda document: document)).ok


FAULTS = [
    (later, "shifted by one", TARGETS),
    (earlier, "shifted by one", ["topk"]),
    (other_label, "label's logprob off by 0.03", TARGETS),
    (other_values, "", TARGETS),
    (other_ids, "", TARGETS),
    (other_entropy, "entropy off by 0.05", ["threshold"]),
    (swapped_tails, "its tail at temperature 1 is the live one at 2", ["temperatures"]),
]


CHANGED = [(change, said, mode, "ranks") for change, said, modes in FAULTS for mode in modes]
CHANGED += [(change, said, mode, "raw") for change, said, _ in FAULTS[:5] for mode in ("topk", "sampled")]


@pytest.mark.parametrize(("change", "said", "mode", "codec"), CHANGED)
def test_a_changed_cache_is_not(engine, caches, tmp_path, change, said, mode, codec):
    found = audited(engine, reseal(engine, caches(mode, codec), tmp_path / "copy", change))
    assert not found.ok
    assert said in found.problem


@pytest.mark.parametrize(("mode", "codec"), [("topk", "plain"), ("topk", "ranks"), ("threshold", "ranks"), ("sampled", "ranks")])
def test_another_temperature_is_named(home, engine, caches, tmp_path, mode, codec):
    warm = TransformersEngine(TeacherFiles(home / "teacher"), manifest(home, mode))
    warm.head = warm.head / 1.5
    found = audited(engine, reseal(warm, caches(mode, codec), tmp_path / "copy", lambda document: document))
    assert not found.ok
    assert mode == "sampled" or "its values are those of temperature 1.5" in found.problem


@pytest.mark.parametrize("change", [other_label, other_values, other_ids])
@pytest.mark.parametrize("mode", ["topk", "sampled"])
def test_the_one_changed_document_is_named(engine, caches, tmp_path, change, mode):
    copy = reseal(engine, caches(mode, "ranks"), tmp_path / "copy", change, only=8)
    found = audited(engine, copy)
    assert not found.ok and found.problem.startswith("document 8, row ")
    assert audited(engine, copy, documents=(1, 5, 9, 13)).ok


@pytest.mark.parametrize("mode", ["topk", "sampled"])
def test_the_one_changed_row_is_named(engine, caches, tmp_path, mode):
    def change(document):
        order = np.arange(document.tokens)
        order[2] = 4
        return with_rows(document, order)

    found = audited(engine, reseal(engine, caches(mode, "ranks"), tmp_path / "copy", change, only=13))
    assert not found.ok and found.problem.startswith("document 13, row 2: ")


@pytest.mark.parametrize("mode", TARGETS)
def test_a_teacher_in_bfloat16_is_as_far_from_itself(home, tmp_path, mode):
    """Batches change its values by hundreds of float32's steps; live against live says by how many."""
    asked = manifest(home, mode, "ranks", teacher={"dtype": "bfloat16"})
    take(asked, tmp_path / "cache")
    live = TransformersEngine(TeacherFiles(home / "teacher"), asked)
    found = audited(live, tmp_path / "cache", documents=range(14))
    assert found.ok, found.problem
    assert not audited(live, reseal(live, tmp_path / "cache", tmp_path / "changed", later)).ok


def test_figures_are_float64_s(home, engine, caches):
    """KL and label differences of the plain codec, recomputed from a dense forward of transformers."""
    cache = LogitCache.open(caches("topk"))
    documents = [cache[index] for index in (1, 5, 8)]
    kl, label = [], []
    for document, dense in zip(documents, reference(home / "teacher", [document.token_ids for document in documents]), strict=True):
        ids = document.ids.reshape(-1, 30)
        p, w = np.exp(np.take_along_axis(dense, ids, 1)), np.exp(document.logprobs.astype(np.float64)).reshape(-1, 30)
        tail_p, tail_w = 1 - p.sum(axis=1), document.tail_mass.astype(np.float64)
        kl.append((p * np.log(p / w)).sum(axis=1) + tail_p * np.log(tail_p / tail_w))
        label.append(np.abs(document.label_logprob - dense[np.arange(document.tokens), document.token_ids[1:]]))
    found = audited(engine, caches("topk"), documents=(1, 5, 8)).bands["all"]
    assert found["kl_mean"] == pytest.approx(np.concatenate(kl).mean(), rel=0.05, abs=1e-8)
    assert found["label_logprob_difference_max"] < np.concatenate(label).max() + 1e-5
    assert found["rows"] == sum(document.tokens for document in documents)


def test_a_sample_is_held_against_the_whole_vocabulary(home, engine, caches):
    """Expected squared error of the draws, sum of q^2 and certain mass, recomputed from a dense forward."""
    cache, c = LogitCache.open(caches("sampled")), 1 / 64
    (dense,) = reference(home / "teacher", [cache[8].token_ids])
    q = np.exp(dense)
    certain = q >= c
    draws = np.where(certain, 0, q * (c - q)).sum()
    found = audited(engine, caches("sampled"), documents=(8,)).bands["all"]
    assert found["gradient_error"] == pytest.approx((draws / (q**2).sum()) ** 0.5, rel=1e-3)
    assert abs(found["certain_bias"]) < 1e-5
    assert found["gradient_error_se"] is None  # one document


def test_standard_errors_count_documents():
    rng = np.random.default_rng(0)
    document = np.repeat(np.arange(40), 25)
    means = []
    for _ in range(500):
        values = rng.normal(0, 1, 40)[document] + rng.normal(0, 0.1, 1000)
        means.append(ratio(values, np.ones(1000), document))
    assert np.std([mean for mean, _ in means]) == pytest.approx(np.mean([error for _, error in means]), rel=0.1)
    assert ratio(np.ones(3), np.zeros(3), np.arange(3)) == (None, None)


def test_a_sample_of_documents_is_spread_over_the_shards():
    lengths = [np.full(10, 5), np.full(10, 1), np.full(3, 5), np.array([1, 7])]
    chosen = spread_sample(lengths, 6, seed=3)
    shard_of = np.repeat(np.arange(4), [10, 10, 3, 2])[chosen]
    assert np.bincount(shard_of, minlength=4).tolist() == [3, 0, 2, 1] or np.bincount(shard_of, minlength=4).tolist() == [2, 0, 3, 1]
    assert (np.diff(chosen) > 0).all() and (np.concatenate(lengths)[chosen] > 1).all()
    np.testing.assert_array_equal(chosen, spread_sample(lengths, 6, seed=3))
    assert any((spread_sample(lengths, 6, seed) != chosen).any() for seed in range(4, 8))
    assert len(spread_sample(lengths, 100, seed=0)) == 14
    assert len(spread_sample([np.ones(4, dtype=np.int32)], 2, seed=0)) == 0


class OnlyTheProtocol:
    """An engine with what `TeacherEngine` names and nothing else."""

    def __init__(self, engine):
        self.vocab_size, self.device_name = engine.vocab_size, "a device"
        self.score, self.score_many, self.interface = engine.score, engine.score_many, engine.interface


def test_any_engine_will_do(engine, caches):
    found = audited(OnlyTheProtocol(engine), caches("topk"))
    assert found.ok and found.device == "a device"


def test_another_teacher_is_refused_at_once(home, caches):
    other = captured(caches("topk"))
    other = other.model_copy(update={"teacher": other.teacher.model_copy(update={"model": str(home / "other")})})
    with pytest.raises(CacheError, match=r"teacher\.files.*--any-teacher"):
        audit(AuditRequest(LogitCache.open(caches("topk")), other))
    found = audit(AuditRequest(LogitCache.open(caches("topk")), other, documents=4, any_teacher=True))
    assert not found.ok


def test_another_vocabulary_cannot_be_compared(home, caches, tmp_path):
    larger = TransformersEngine(TeacherFiles(write_teacher(tmp_path, vocab_size=VOCAB + 1)), manifest(home, "topk"))
    with pytest.raises(CacheError, match="300 ids, this one gives mass to 301"):
        audited(larger, caches("topk"))


def test_a_value_that_is_no_number_is_not_ok(engine, caches):
    cache = LogitCache.open(caches("topk"))
    rows = compare_rows(engine, cache, [5], score_live(engine, cache, [5]), lambda done, wanted: None)
    rows.cached["label"][3] = np.nan
    (failed,) = [check for check in checks(rows, None, 1.0) if not check.ok]
    assert (failed.document, failed.row) == (5, 3)


def test_another_dtype_is_refused(home, caches):
    other = captured(caches("topk"))
    other = other.model_copy(update={"teacher": other.teacher.model_copy(update={"dtype": "bfloat16"})})
    with pytest.raises(CacheError, match=r"teacher\.dtype=float32"):
        audit(AuditRequest(LogitCache.open(caches("topk")), other))


@pytest.fixture
def command(pipeline, home, tmp_path):
    """`pipeline cache audit` on a capture made by command, of which the documents are gone."""
    shutil.copytree(home / "teacher", tmp_path / "teacher")
    documents = Path(shutil.copy(home / "documents.parquet", tmp_path / "documents.parquet"))
    path = write_shard_yaml(tmp_path, tmp_path / "teacher", documents, targets={"k": 30})
    assert pipeline("cache-teacher", "--shard", path)[0] == 0
    documents.unlink()
    return lambda *more: pipeline("cache", "audit", "--shard", path, "--documents", "6", *more)


def test_the_command_says_ok(command):
    code, out, err = command("--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["ok"] and found["problem"] is None and len(found["documents"]) == 6
    assert {"shard", "split", "fingerprint", "engine", "device", "seed", "control", "checks", "bands", "kl_mean", "kl_mean_se"} <= set(
        found
    )
    assert "6/6 documents compared" in err
    code, out, _ = command("--split", "validation", "--seed", "4")
    assert code == 0 and out.strip().endswith("ok") and "validation: 3 documents" in out


def test_the_command_fails_in_one_line(command, engine, tmp_path):
    cache = tmp_path / "artifacts/caches/tiny"
    reseal(engine, cache, tmp_path / "changed", later)
    shutil.rmtree(cache)
    (tmp_path / "changed").rename(cache)
    code, out, err = command("--json")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and not json.loads(out)["ok"]
    assert "train document" in line and "row" in line and "shifted by one" in line and "--set name=" in line
    assert "NOT OK" in command()[1]


def test_the_command_refuses_another_teacher(command, home):
    code, out, err = command("--set", f"teacher.model={home / 'other'}")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "teacher.files" in err and "--any-teacher" in err
    assert command("--set", f"teacher.model={home / 'other'}", "--any-teacher")[0] == 2


def test_the_command_refuses_an_engine_that_is_not_installed(command, without_vllm):
    assert command("--engine", "vllm")[0] == 2
