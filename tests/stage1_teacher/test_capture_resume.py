"""SIGKILL, Ctrl-C, a flipped bit, a second call: the same bytes as a capture that nothing happened to (field cases 29, 30, 34)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from captures import parquet, shard, take, tree, write_shard_yaml
from tiny_teacher import text, write_teacher

from pipeline.contract.atomic_io import TEMPORARY_PREFIX
from pipeline.contract.logit_cache.index import read_manifest

ROOT = Path(__file__).parents[2]
LIMIT, SHARDS = 240, 62
TEXTS = [None if i % 7 == 3 else text(1 + i % 30, i) for i in range(300)]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a teacher, documents and the shard's manifest."""
    folder = tmp_path_factory.mktemp("resume")
    write_teacher(folder / "teacher")
    write_shard_yaml(folder, folder / "teacher", parquet(folder, TEXTS), documents={"limit": LIMIT, "validation": {"documents": 5}})
    return folder


def command(here: Path, root: Path) -> list[str]:
    layout = ["--set", "cache.documents_per_shard=4"]
    return [sys.executable, "-m", "pipeline", "cache-teacher", "--shard", str(here / "tiny.yaml"), "--root", str(root), "--json", *layout]


def start(here: Path, root: Path) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def heed_interrupts():  # a shell's background job is started deaf to Ctrl-C
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipe = subprocess.PIPE
    return subprocess.Popen(command(here, root), cwd=here, env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed_interrupts)


def stop_in_the_middle(process: subprocess.Popen[str], cache: Path, number: int) -> tuple[int, str]:
    """Send a signal once two sidecars are there; gives the exit code and stderr."""
    deadline = time.monotonic() + 120
    while len(list(cache.glob("shards/[tv]*-?????.json"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(number)
    err = process.communicate(timeout=60)[1]
    assert not (cache / "manifest.json").exists()
    return process.returncode, err


@pytest.fixture(scope="module")
def whole(here):
    """What an uninterrupted run of the same command prints and leaves."""
    process = start(here, here / "whole")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out), tree(here / "whole" / "caches" / "tiny")


@pytest.fixture
def copy(here, whole, tmp_path):
    """A whole cache that may be harmed, and the arguments that redo it."""
    shutil.copytree(here / "whole" / "caches" / "tiny", tmp_path / "copy" / "caches" / "tiny")
    return tmp_path / "copy" / "caches" / "tiny", command(here, tmp_path / "copy")[3:]


def test_kill_9_in_the_middle_then_the_same_command(here, whole, tmp_path):
    cache = tmp_path / "caches" / "tiny"
    code, _ = stop_in_the_middle(start(here, tmp_path), cache, signal.SIGKILL)
    assert code == -signal.SIGKILL
    (cache / "shards" / f"{TEMPORARY_PREFIX}left-by-a-killed-writer").write_bytes(b"half")
    process = start(here, tmp_path)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["shards_reused"] >= 2
    assert summary["shards_written"] > 0
    assert summary["shards_reused"] + summary["shards_written"] == whole[0]["shards_written"] == SHARDS
    assert tree(cache) == whole[1]


def test_control_c_is_one_line_and_exit_2(here, whole, tmp_path):
    code, err = stop_in_the_middle(start(here, tmp_path), tmp_path / "caches" / "tiny", signal.SIGINT)
    assert code == 2
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert errors == ["error: interrupted; what is finished is kept, run the same command again to go on"]
    assert err.splitlines()[-1] == errors[0]
    assert not list(tmp_path.rglob(f"{TEMPORARY_PREFIX}*"))


def test_the_same_command_on_a_whole_cache_reads_nothing_else(pipeline, here, copy, whole, monkeypatch):
    cache, arguments = copy
    monkeypatch.setattr("stage1_teacher.engines.transformers_engine.TransformersEngine", None)
    moved = [(here / name, here / f"away-{name}") for name in ("teacher", "documents.parquet")]
    for there, away in moved:
        there.rename(away)
    try:
        code, out, err = pipeline(*arguments)
    finally:
        for there, away in moved:
            away.rename(there)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["shards_written"], summary["shards_reused"], summary["tokens_per_second"]) == (0, SHARDS, None)
    assert summary["fingerprint"] == whole[0]["fingerprint"]
    assert tree(cache) == whole[1]


def _payload(cache: Path) -> Path:
    return cache / "shards" / read_manifest(cache).splits["train"].shards[7].payload.name


def _flip(cache: Path) -> None:
    path = _payload(cache)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _truncate(cache: Path) -> None:
    path = _payload(cache)
    path.write_bytes(path.read_bytes()[:-100])


def _remove(cache: Path) -> None:
    _payload(cache).unlink()


@pytest.mark.parametrize("harm", [_flip, _truncate, _remove], ids=lambda harm: harm.__name__.strip("_"))
def test_a_harmed_shard_is_redone_and_no_other(pipeline, copy, whole, harm):
    cache, arguments = copy
    times = {path.name: path.stat().st_mtime_ns for path in (cache / "shards").glob("*.arrow")}
    harmed = _payload(cache).name
    harm(cache)
    code, out, err = pipeline(*arguments)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["shards_written"], summary["shards_reused"]) == (1, SHARDS - 1)
    assert tree(cache) == whole[1]
    assert {path.name for path in (cache / "shards").glob("*.arrow") if path.stat().st_mtime_ns != times[path.name]} - {harmed} == set()


@pytest.mark.parametrize(
    "name", ["teacher/interface.safetensors", "teacher/tokenizer.json", "teacher.json", "manifest.json", "identity.json"]
)
def test_a_damaged_file_beside_the_shards_is_mended(pipeline, copy, whole, name):
    cache, arguments = copy
    (cache / name).write_bytes((cache / name).read_bytes()[:-30])
    if name == "identity.json":
        (cache / "shards" / "train-00000.json").unlink()  # something to do, so that the rule is looked up
        _remove(cache)
    code, out, err = pipeline(*arguments)
    assert code == 0, err
    assert json.loads(out)["shards_written"] == (2 if name == "identity.json" else 0)
    assert {key: data for key, data in tree(cache).items() if key != "teacher.json"} == {
        key: data for key, data in whole[1].items() if key != "teacher.json"
    }


def test_a_damaged_rule_without_a_manifest_is_refused_in_one_line(pipeline, copy):
    cache, arguments = copy
    (cache / "manifest.json").unlink()
    (cache / "identity.json").write_bytes(b'{"half')
    code, _, err = pipeline(*arguments)
    assert code == 2
    assert err.count("\n") == 1
    assert "identity.json: is damaged" in err


def test_what_is_printed_as_json(whole):
    summary = whole[0]
    wanted = {"shard", "fingerprint", "documents", "tokens", "shards_written", "shards_reused", "tokens_per_second", "skipped"}
    assert wanted <= set(summary)
    assert (summary["shard"], summary["documents"], summary["shards_reused"]) == ("tiny", LIMIT + 5, 0)
    assert summary["tokens_per_second"] > 0
    assert summary["skipped"] == {"null": sum(1 for i in range(286) if i % 7 == 3)}


def test_two_uninterrupted_captures_in_this_process_have_the_same_bytes(here, tmp_path):
    manifest = shard(here / "teacher", here / "documents.parquet")
    for name in "ab":
        take(manifest, tmp_path / name)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
