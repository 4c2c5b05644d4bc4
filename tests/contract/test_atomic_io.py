"""Files and folders are whole or not there: after an exception, a full disk, a SIGKILL (field cases 29, 30)."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, atomic_path, remove, sweep_temporaries, write_json, write_text, writer_lives
from pipeline.contract.errors import PipelineError
from pipeline.contract.process import is_alive, is_gone, process_mark

ROOT = Path(__file__).parents[2]

LIMITED = """
import resource, sys
sys.dont_write_bytecode = True
from pathlib import Path
from pipeline.contract.atomic_io import atomic_path
from pipeline.contract.errors import PipelineError
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    with atomic_path(Path(sys.argv[1])) as temporary:
        temporary.write_bytes(bytes(1_000_000))
except PipelineError as error:
    print(error)
    sys.exit(2)
"""

LIMITED_SHARD = """
import resource, sys
sys.dont_write_bytecode = True
import numpy as np
from pathlib import Path
from pipeline.contract.errors import PipelineError
from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.index import MadeBy
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.store import LocalStore
noise = np.random.default_rng(0)
n = 100_000
document = CachedDocument(
    np.arange(n + 1, dtype=np.int32), np.ones(n, np.uint8), np.full(n, -1, np.float32), noise.random(n, np.float32) - 2,
    noise.integers(0, 2**20, n, np.int32), noise.random(n, np.float32) - 2,
)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    made_by = MadeBy(fingerprint="", vocabulary=None)
    options = {"made_by": made_by, "first_document": 0, "tokens_per_batch": 10, "skipped": {}}
    write_shard(LocalStore(Path(sys.argv[1])), make_codec("plain", Targets(), None), "train", 0, [document], **options)
except PipelineError as error:
    print(error)
    sys.exit(2)
"""

SLOW_WRITER = """
import sys, time
from pathlib import Path
from pipeline.contract.atomic_io import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    with temporary.open("wb") as file:
        while True:
            file.write(bytes(1000))
            file.flush()
            time.sleep(0.01)
"""


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def python(code: str, *arguments: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60)


def test_a_body_that_ends_well_publishes(tmp_path):
    with atomic_path(tmp_path / "deep" / "file") as temporary:
        temporary.write_text("whole")
        assert not (tmp_path / "deep" / "file").exists()
    assert (tmp_path / "deep" / "file").read_text() == "whole"
    assert names(tmp_path / "deep") == ["file"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_body_that_raises_leaves_nothing(tmp_path, error):
    with pytest.raises(error), atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise error
    assert names(tmp_path) == []


def test_a_body_that_raises_leaves_the_older_file(tmp_path):
    write_text(tmp_path / "file", "older")
    with pytest.raises(ValueError), atomic_path(tmp_path / "file") as temporary:
        temporary.write_text("half")
        raise ValueError
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "older"


def test_a_folder_body_that_raises_leaves_the_older_folder(tmp_path):
    folder(tmp_path / "folder", old="older")
    with pytest.raises(ValueError), atomic_path(tmp_path / "folder") as temporary:
        temporary.mkdir()
        (temporary / "new").write_text("half")
        raise ValueError
    assert names(tmp_path) == ["folder"]
    assert names(tmp_path / "folder") == ["old"]


@pytest.mark.parametrize("older", [None, "older"])
def test_out_of_disk_is_one_line_and_nothing_half_written(tmp_path, older):
    target = tmp_path / "big.bin"
    if older:
        target.write_text(older)
    done = python(LIMITED, target)
    assert done.returncode == 2, done.stderr
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1
    assert str(target) in done.stdout
    assert "no space left" in done.stdout
    assert "same command again" in done.stdout
    assert names(tmp_path) == (["big.bin"] if older else [])
    assert not older or target.read_text() == older


def test_out_of_disk_in_a_shard_is_one_line_and_leaves_the_folder_empty(tmp_path):
    done = python(LIMITED_SHARD, tmp_path)
    assert done.returncode == 2, done.stderr
    assert done.stdout.count("\n") == 1
    assert "train-00000" in done.stdout
    assert names(tmp_path / "shards") == []


def test_other_os_errors_are_not_called_a_full_disk(tmp_path):
    with pytest.raises(PermissionError), atomic_path(tmp_path / "file"):
        raise PermissionError(13, "no")
    with pytest.raises(PipelineError, match="no space left"), atomic_path(tmp_path / "file"):
        raise OSError(28, os.strerror(28))


def folder(path: Path, **files: str) -> None:
    with atomic_path(path) as temporary:
        temporary.mkdir()
        for name, text in files.items():
            (temporary / name).write_text(text)


def test_a_folder_replaces_a_folder_whole(tmp_path):
    folder(tmp_path / "folder", old="1", both="1")
    folder(tmp_path / "folder", new="2", both="2")
    assert names(tmp_path) == ["folder"]
    assert {path.name: path.read_text() for path in (tmp_path / "folder").iterdir()} == {"new": "2", "both": "2"}


def test_kill_9_leaves_only_a_temporary_that_a_sweep_removes(tmp_path):
    write_text(tmp_path / "file", "older")
    writer = subprocess.Popen([sys.executable, "-c", SLOW_WRITER, str(tmp_path / "file")], cwd=ROOT)
    try:
        deadline = time.monotonic() + 30
        while not any(path.stat().st_size for path in tmp_path.glob(f"{TEMPORARY_PREFIX}*")) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        writer.kill()
    assert writer.wait() == -signal.SIGKILL
    left = names(tmp_path)
    assert len(left) == 2
    assert left[0].startswith(TEMPORARY_PREFIX)
    sweep_temporaries(tmp_path)
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "older"


@pytest.fixture(scope="module")
def dead():
    """The mark of a process of this machine that has ended."""
    return python("from pipeline.contract.process import process_mark; print(process_mark(), end='')").stdout


def test_a_sweep_removes_folders_of_the_dead_too_and_nothing_else(tmp_path, dead):
    (tmp_path / f"{TEMPORARY_PREFIX}{dead}_1-teacher" / "deep").mkdir(parents=True)
    (tmp_path / f"{TEMPORARY_PREFIX}{dead}_2-file").write_text("half")
    spared = [f"{TEMPORARY_PREFIX}{mark}_3-file" for mark in (process_mark(), "0123456789abcdef-1-1", "no mark", "")] + [".hidden"]
    for name in spared:
        (tmp_path / name).write_text("a living writer's, another machine's, a user's")
    sweep_temporaries(tmp_path)
    sweep_temporaries(tmp_path / "not there")
    assert names(tmp_path) == sorted(spared)
    assert [name for name in spared if writer_lives(tmp_path / name)] == spared[:1]


def test_a_process_that_nobody_has_asked_after_is_gone(dead):
    assert is_gone(dead) and not is_alive(dead)
    with subprocess.Popen(["true"]) as child:
        mark = process_mark().replace(str(os.getpid()), str(child.pid)).rpartition("-")[0]
        started = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[19]
        while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert is_gone(f"{mark}-{started}")


def test_a_number_used_again_is_another_process():
    machine, number, started = process_mark().split("-")
    assert is_alive(process_mark()) and not is_gone(process_mark())
    assert is_gone(f"{machine}-{number}-{int(started) - 1}")
    for unknown in (f"0{machine[1:]}x-{number}-{started}", "", "-", "a-b-c", f"{machine}-x-y"):
        assert not is_gone(unknown), unknown


def test_remove_unlinks_a_link_and_spares_its_target(tmp_path):
    folder(tmp_path / "target", file="kept")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    remove(tmp_path / "link")
    remove(tmp_path / "never there")
    assert names(tmp_path) == ["target"]
    assert names(tmp_path / "target") == ["file"]


def test_json_has_the_same_bytes_for_the_same_value_and_the_given_order(tmp_path):
    for name in "ab":
        write_json(tmp_path / name, {"z": 1, "a": [0.1, "é"]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_text(encoding="utf-8").index("z") < (tmp_path / "a").read_text(encoding="utf-8").index('"a"')
    assert "é" in (tmp_path / "a").read_text(encoding="utf-8")
