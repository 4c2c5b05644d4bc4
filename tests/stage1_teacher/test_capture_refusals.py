"""What stage one refuses, in one line and with exit 2: another rule's cache, a broken input, an option to come (cases 4, 7, 9, 35)."""

import shutil

import pytest
from captures import parquet, shard, take, write_shard_yaml
from safetensors.torch import load_file, save_file
from tiny_teacher import text, write_teacher, write_tokenizer
from transformers.utils.logging import disable_progress_bar


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A teacher, documents and a cache of them, which tests copy and change."""
    folder = tmp_path_factory.mktemp("made")
    take(shard(write_teacher(folder / "teacher"), parquet(folder), documents={"limit": 6}), folder / "artifacts/caches/tiny")
    return folder


@pytest.fixture
def here(made, tmp_path):
    """Teacher, documents and a manifest that names them."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("artifacts"))
    disable_progress_bar()  # as the command line does for its own process
    write_shard_yaml(tmp_path, tmp_path / "teacher", tmp_path / "documents.parquet", documents={"limit": 6})
    return tmp_path


@pytest.fixture
def capture(pipeline, here):
    """Run cache-teacher with more arguments on the shard in `here`."""
    return lambda *more: pipeline("cache-teacher", "--shard", here / "tiny.yaml", *more)


@pytest.fixture
def refused(capture):
    """Run it, insist on exit 2 and one line on stderr, and give that line."""

    def run(*more):
        code, out, err = capture(*more)
        assert code == 2, err
        assert out == ""
        lines = [line for line in err.splitlines() if not line.startswith(("train shard", "validation shard"))]  # progress
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
        assert "Traceback" not in err
        return lines[0]

    return run


@pytest.fixture
def captured(made, here):
    """The same and the cache."""
    shutil.copytree(made / "artifacts", here / "artifacts")
    return here


def both_values(line, field):
    """The cache's and the manifest's value of `field` in a refusal; they differ."""
    start = f"was made with {field}="
    assert start in line, line
    theirs, found, ours = line.split(start)[1].partition(f", the manifest says {field}=")
    ours = ours.partition("; give the same settings")[0]
    assert found and theirs and ours and theirs != ours, line
    return theirs, ours


def test_another_teacher(captured, refused):
    write_teacher(captured / "other", seed=1)
    theirs, ours = both_values(refused("--set", f"teacher.model={captured / 'other'}"), "teacher.files")
    assert "model.safetensors" in theirs
    assert "model.safetensors" in ours


def test_another_teacher_under_the_same_name(captured, refused):
    write_teacher(captured / "teacher", seed=1)
    both_values(refused(), "teacher.files")


def test_another_tokenizer(captured, refused):
    shutil.copytree(captured / "teacher", captured / "other")
    write_tokenizer(captured / "other", 100)
    both_values(refused("--set", f"teacher.model={captured / 'other'}"), "tokenizer.files")


def test_other_documents(captured, refused):
    other = parquet(captured, [text(9, 5)] * 20, "other.parquet")
    both_values(refused("--set", f"documents.files={other}"), "documents.content")


def test_other_documents_under_the_same_name_when_there_is_more_to_do(captured, refused):
    parquet(captured, [text(9, 5)] * 20)
    both_values(refused("--set", "documents.limit=9"), "documents.content")


@pytest.mark.parametrize(
    ("field", "theirs", "ours"),
    [
        ("targets.mode", "topk", "threshold"),
        ("targets.k", "8", "9"),
        ("targets.temperatures", "[1.0]", "[1.0, 2.0]"),
        ("targets.entropy", "False", "True"),
        ("documents.duplicates", "keep", "drop"),
        ("documents.max_length", "24", "25"),
        ("documents.separator", "<|endoftext|>", "word1"),
        ("documents.validation.every", "4", "5"),
        ("cache.documents_per_shard", "4", "5"),
        ("cache.codec", "ranks", "plain"),
        ("teacher.dtype", "float32", "bfloat16"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_another_rule(captured, refused, field, theirs, ours, finished):
    cache = captured / "artifacts" / "caches" / "tiny"
    if not finished:  # as a killed capture leaves it
        (cache / "manifest.json").unlink()
    before = sorted(path.name for path in cache.rglob("*"))
    assert both_values(refused("--set", f"{field}={ours}"), field) == (theirs, ours)
    assert sorted(path.name for path in cache.rglob("*")) == before


@pytest.mark.parametrize("more", [[], ["--set", "documents.limit=9"]], ids=["whole", "extended"])
def test_a_teacher_that_only_moved_is_the_same(captured, capture, more):
    shutil.move(captured / "teacher", captured / "moved")
    code, _, err = capture("--set", f"teacher.model={captured / 'moved'}", *more)
    assert code == 0, err


def test_documents_that_only_moved_are_the_same(captured, capture):
    (captured / "sub").mkdir()
    shutil.move(captured / "documents.parquet", captured / "sub" / "documents.parquet")
    code, _, err = capture("--set", f"documents.files={captured / 'sub' / 'documents.parquet'}")
    assert code == 0, err


def test_a_truncated_parquet(here, refused):
    path = here / "documents.parquet"
    path.write_bytes(path.read_bytes()[:-200])
    assert "documents.parquet" in refused()
    assert not (here / "artifacts" / "caches" / "tiny" / "manifest.json").exists()


def test_a_missing_teacher_and_missing_documents_are_said_together(here, refused):
    shutil.rmtree(here / "teacher")
    line = refused()
    assert f"teacher.model={here / 'teacher'}: no such folder" in line
    (here / "documents.parquet").unlink()
    line = refused()
    assert "teacher.model=" in line
    assert "documents.parquet" in line


def test_an_unknown_key_names_the_nearest(refused):
    assert "'documents.max_length'" in refused("--set", "documents.max_lenght=9")


def test_a_students_key_is_sent_to_train(refused):
    line = refused("--set", "learning_rate=0.1")
    assert "learning_rate=0.1" in line
    assert "pipeline train" in line


def test_an_engine_that_is_not_installed(here, refused, without_vllm):
    assert "engine=vllm: vLLM is not installed" in refused("--engine", "vllm")
    assert not (here / "artifacts" / "caches" / "tiny" / "shards").exists()


@pytest.mark.parametrize("value", ["0", "256", "many"])
def test_a_k_out_of_its_rule(refused, value):
    assert "targets.k=" in refused("--set", f"targets.k={value}")


def test_a_k_above_the_vocabulary(refused):
    assert "targets.k=200" in refused("--set", "targets.k=200")


def test_an_unknown_separator_names_the_special_tokens(refused):
    assert "<|endoftext|>" in refused("--set", "documents.separator=<|im_end|>")


def test_a_non_finite_weight_names_the_document_and_publishes_nothing_of_its_shard(here, refused):
    weights = load_file(here / "teacher" / "model.safetensors")
    weights["model.embed_tokens.weight"][126, :] = float("nan")
    weights["lm_head.weight"][126, :] = 0  # rows without the separator stay finite
    texts = [text(40, i) for i in range(6)] + ["word1 <|endoftext|> word2"] + [text(40, i) for i in range(6)]
    parquet(here, texts)
    save_file(weights, here / "teacher" / "model.safetensors", metadata={"format": "pt"})
    line = refused("--set", "documents.limit=10")
    assert "documents.parquet row 6: the teacher gives a non-finite value" in line
    assert names(here) == ["train-00000"]


def names(here):
    shards = here / "artifacts" / "caches" / "tiny" / "shards"
    assert not list(shards.glob(".tmp-*"))
    return sorted({path.name[:11] for path in shards.glob("*.arrow")})


def test_a_token_outside_the_vocabulary_names_the_document(here, refused):
    write_tokenizer(here / "teacher", 200)  # ids up to 198, the teacher has 128 rows
    line = refused()
    assert "documents.parquet row " in line
    assert "is outside the teacher's 128 rows" in line
    assert names(here) == []


def test_no_text_at_all(here, refused):
    parquet(here, [None, "", " "])
    assert "no document is left after skipping" in refused()
