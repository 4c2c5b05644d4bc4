"""The real command, killed or interrupted, and run again: the same bytes as one that nothing happened to (field cases 29, 34)."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from captures import parquet, take, tree, write_shard_yaml
from forks import start_command
from tiny_teacher import text, write_teacher

from pipeline.cli import run_command
from pipeline.contract.atomic_io import TEMPORARY_PREFIX
from pipeline.contract.manifest.find import load_shard

LIMIT, SHARDS = 60, 22
TEXTS = [None if i % 7 == 3 else text(1 + i % 30, i) for i in range(90)]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A folder with a teacher, documents and the shard's manifest."""
    folder = tmp_path_factory.mktemp("resume")
    documents = {"limit": LIMIT, "validation": {"documents": 5}}
    write_shard_yaml(folder, write_teacher(folder / "teacher"), parquet(folder, TEXTS), documents=documents)
    return folder


def arguments(here: Path, root: Path) -> list[str]:
    layout = ["--set", "cache.documents_per_shard=3"]
    return ["cache-teacher", "--shard", str(here / "tiny.yaml"), "--root", str(root), "--json", *layout]


def stop_in_the_middle(here: Path, root: Path, number: int) -> tuple[int | None, str]:
    """Send a signal once two sidecars are there; gives the exit code and stderr."""
    process, cache = start_command(arguments(here, root), root / "stderr"), root / "caches/tiny"
    while len(list(cache.glob("shards/[tv]*-?????.json"))) < 2:
        assert process.is_alive(), (root / "stderr").read_text()
        time.sleep(0.002)
    os.kill(process.pid, number)
    process.join(60)
    assert not (cache / "manifest.json").exists()
    return process.exitcode, (root / "stderr").read_text()


@pytest.fixture(scope="module")
def whole(here, capsys_module):
    """What an uninterrupted run of the same command prints and leaves."""
    return json.loads(capsys_module(arguments(here, here / "whole"))), tree(here / "whole/caches/tiny")


@pytest.fixture(scope="module")
def capsys_module(tmp_path_factory):
    """Run a command in this process, for a fixture that several tests share; gives its stdout."""

    def run(command):
        path = tmp_path_factory.mktemp("printed") / "stdout"
        with path.open("w") as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            assert run_command(command) == 0
        return path.read_text()

    return run


def test_kill_9_in_the_middle_then_the_same_command(pipeline, here, whole, tmp_path):
    cache = tmp_path / "caches/tiny"
    assert stop_in_the_middle(here, tmp_path, signal.SIGKILL)[0] == -signal.SIGKILL
    code, out, err = pipeline(*arguments(here, tmp_path))
    assert code == 0, err
    summary = json.loads(out)
    assert summary["shards_reused"] >= 2
    assert summary["shards_written"] > 0
    assert summary["shards_reused"] + summary["shards_written"] == whole[0]["shards_written"] == SHARDS
    assert tree(cache) == whole[1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_request_to_stop_is_one_line_and_exit_2(pipeline, here, whole, tmp_path, number):
    code, err = stop_in_the_middle(here, tmp_path, number)
    assert code == 2
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("error:")]
    assert errors == ["error: interrupted; what is finished is kept, run the same command again to go on"]
    assert err.splitlines()[-1] == errors[0]
    assert pipeline(*arguments(here, tmp_path))[0] == 0  # a half that the signal came into is cleared by the next command
    assert not list(tmp_path.rglob(f"{TEMPORARY_PREFIX}*")) and not list(tmp_path.glob("caches/tiny/leases/*"))
    assert tree(tmp_path / "caches/tiny") == whole[1]


def test_the_same_command_on_a_whole_cache_reads_nothing_else(pipeline, here, whole, monkeypatch):
    monkeypatch.setattr("stage1_teacher.engines.transformers_engine.TransformersEngine", None)
    moved = [(here / name, here / f"away-{name}") for name in ("teacher", "documents.parquet")]
    for there, away in moved:
        there.rename(away)
    try:
        code, out, err = pipeline(*arguments(here, here / "whole"))
    finally:
        for there, away in moved:
            away.rename(there)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["shards_written"], summary["shards_reused"], summary["tokens_per_second"]) == (0, SHARDS, None)
    assert summary["fingerprint"] == whole[0]["fingerprint"]
    assert tree(here / "whole/caches/tiny") == whole[1]


def test_what_is_printed_as_json(whole):
    summary = whole[0]
    wanted = {"shard", "fingerprint", "documents", "tokens", "shards_written", "shards_reused", "tokens_per_second", "skipped"}
    assert wanted <= set(summary)
    assert (summary["shard"], summary["documents"], summary["shards_reused"]) == ("tiny", LIMIT + 5, 0)
    assert summary["tokens_per_second"] > 0
    assert summary["skipped"] == {"null": sum(1 for i in range(76) if i % 7 == 3)}


def test_a_capture_by_the_library_has_the_bytes_of_the_commands(here, whole, tmp_path):
    settings = {"cache.documents_per_shard": 3}
    take(load_shard(str(here / "tiny.yaml"), settings), tmp_path, overrides=settings)
    assert tree(tmp_path) == whole[1]
