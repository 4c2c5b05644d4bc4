"""One worker or several, on one machine or more, killed or not: the same bytes (field cases 6, 28)."""

import json
import os
import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from captures import parquet, shard, take, tree, write_shard_yaml
from forks import Death, run, start, start_command, warm_up
from tiny_teacher import text, write_teacher, write_tokenizer

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from pipeline.executors import child
from stage1_teacher import worker

FOREIGN = {"holder": "0123456789abcdef-1-1", "worker": "w", "beat": 0}
SECTIONS = {
    "documents": {"limit": 60, "validation": {"documents": 9, "every": 5}},
    "cache": {"codec": "clusters", "calibration_rows": 100, "documents_per_shard": 6},
}
SHARDS = 12


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder, [None if i % 7 == 3 else text(1 + i % 23, i) for i in range(100)])


@pytest.fixture(scope="module")
def manifest(inputs):
    return shard(*inputs, **SECTIONS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, manifest):
    """What one worker makes that nothing happens to."""
    cache = tmp_path_factory.mktemp("alone")
    assert take(manifest, cache).shards_written == SHARDS
    return tree(cache)


@pytest.fixture
def warm_workers(monkeypatch):
    """Workers forked from a process that has imported everything, where a command starts them anew: that takes longer."""
    warm_up()
    monkeypatch.setattr(child.multiprocessing, "get_context", lambda kind: get_context("forkserver"))


def holder_of(cache, unit="[tv]*"):
    """The number of the process that holds a shard, once there is one."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for lease in cache.glob(f"leases/{unit}-?????.json"):
            try:
                return int(json.loads(lease.read_text())["holder"].split("-")[1])
            except FileNotFoundError:
                continue
        time.sleep(0.001)
    raise AssertionError("nobody came to hold a lease")


def test_four_workers_of_whom_one_is_killed(tmp_path, manifest, alone, warm_workers):
    """Its shard is taken over at once, long before any patience ends."""
    seen = []
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(
            take, manifest, tmp_path, workers=4, on_shard=lambda record, reused, seconds: seen.append((record.name, reused))
        )
        os.kill(holder_of(tmp_path), signal.SIGKILL)
        done = result.result(timeout=50)
    assert tree(tmp_path) == alone
    assert len(seen) == len({name for name, _ in seen}) == SHARDS
    assert done.shards_written + done.shards_reused == SHARDS and done.shards_written >= SHARDS - 1
    assert len({json.loads(log.read_text())["worker"] for log in tmp_path.glob("logs/*")}) > 1
    assert open_store(tmp_path).names("leases") == []


def test_all_workers_are_killed_and_replaced(tmp_path, manifest, alone, warm_workers):
    said = []
    with ThreadPoolExecutor(1) as thread:
        result = thread.submit(take, manifest, tmp_path, workers=2, on_death=said.append)
        killed = set()
        while not result.done() and len(killed) < 2:
            number = holder_of(tmp_path)
            if number not in killed:
                os.kill(number, signal.SIGKILL)
                killed.add(number)
        assert result.result(timeout=50).manifest.splits["train"].documents == 60
    assert tree(tmp_path) == alone
    assert len(said) == 2 and all("died (exit code -9)" in line for line in said)


def test_a_workers_error_is_the_commands(tmp_path, inputs, warm_workers):
    """Here the one document that cannot be scored; and the other worker does not go on without it."""
    write_tokenizer(shutil.copytree(inputs[0], tmp_path / "teacher"), 200)  # ids up to 198, the teacher has 128 rows
    with pytest.raises(TeacherError, match=r"documents.parquet row \d+: token id 1\d\d is outside the teacher's 128 rows"):
        take(shard(tmp_path / "teacher", inputs[1], **SECTIONS | {"cache": {"codec": "plain"}}), tmp_path / "tiny", workers=2)
    assert not (tmp_path / "tiny/manifest.json").exists()


@pytest.mark.parametrize("without_leases", [False, True])
def test_commands_started_at_once(tmp_path, manifest, alone, without_leases):
    """As on several machines. Without leases each does everything, on top of the others."""
    commands = [start(manifest, tmp_path, without_leases=without_leases) for _ in range(3)]
    for command in commands:
        command.join(60)
    assert [command.exitcode for command in commands] == [0, 0, 0]
    assert tree(tmp_path) == alone
    assert verify(open_store(tmp_path), deep=True).bad == []


def test_one_of_two_commands_killed(tmp_path, manifest, alone):
    first = start(manifest, tmp_path, Death("after", "payload"))
    holder_of(tmp_path)  # a second that is quicker might leave it no shard to die at
    second = start(manifest, tmp_path)
    first.join(60), second.join(60)
    assert (first.exitcode, second.exitcode) == (-9, 0)
    assert tree(tmp_path) == alone


def test_two_ranges_at_once_end_as_the_larger(tmp_path, inputs, manifest, alone):
    """One of them may have to be run again; neither leaves a manifest that is not true."""
    smaller = shard(*inputs, **SECTIONS | {"documents": {"limit": 44, "validation": {"documents": 9, "every": 5}}})
    commands = [start(each, tmp_path) for each in (smaller, manifest)]
    for command in commands:
        command.join(60)
    if (tmp_path / "manifest.json").exists():
        assert not [bad for bad in verify(open_store(tmp_path), deep=True).bad if bad.file.endswith(".arrow")]
    take(manifest, tmp_path)
    found = tree(tmp_path)
    assert {name: found[name] for name in alone} == alone


def test_a_shard_in_foreign_hands_is_waited_for(tmp_path, manifest, alone, monkeypatch):
    """For as long as patience says, while the documents are read once and once more, however long it is."""
    passes = []

    class Counted(worker.ShardPlan):
        def __iter__(self):
            passes.append(time.monotonic())
            return super().__iter__()

    monkeypatch.setattr(worker, "ShardPlan", Counted)
    monkeypatch.setattr(worker, "WAIT_SECONDS", 0.05)
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "1.5")
    open_store(tmp_path).write_json("leases/train-00003.json", FOREIGN)
    take(manifest, tmp_path)
    assert tree(tmp_path) == alone
    assert len(passes) == 2 and passes[1] - passes[0] > 1.5
    assert open_store(tmp_path).names("leases") == []


@pytest.mark.parametrize("unit", ["teacher", "vocabulary"])
def test_what_all_need_in_foreign_hands_is_waited_for(tmp_path, manifest, alone, monkeypatch, unit):
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "0.3")
    open_store(tmp_path).write_json(f"leases/{unit}.json", FOREIGN)
    take(manifest, tmp_path)
    assert tree(tmp_path) == alone


def test_a_shard_that_another_machine_makes_is_awaited(tmp_path, manifest, alone, monkeypatch):
    """It comes while this worker waits: nothing is done twice, and it is reported as reused."""
    monkeypatch.setattr(worker, "WAIT_SECONDS", 0.05)
    elsewhere = tmp_path / "elsewhere"
    take(manifest, elsewhere)
    here = open_store(tmp_path / "here")
    unit = read_manifest(open_store(elsewhere)).splits["train"].shards[3]

    def bring():
        time.sleep(1.5)
        for name in (unit.payload.name, f"shards/{unit.name}.json"):
            here.write_bytes(name, (elsewhere / name).read_bytes())

    here.write_json(f"leases/{unit.name}.json", FOREIGN)
    other = threading.Thread(target=bring)
    other.start()
    result = take(manifest, here)
    other.join()
    assert (result.shards_written, result.shards_reused) == (SHARDS - 1, 1)
    assert tree(here) == alone


@pytest.mark.parametrize("moment", [0, 4e9])
def test_the_times_of_files_are_not_looked_at(tmp_path, manifest, alone, moment):
    assert run(manifest, tmp_path, Death("after", "sidecar", 5)) == -9
    for path in tmp_path.rglob("*"):
        os.utime(path, (moment, moment))
    result = take(manifest, tmp_path)
    assert (result.shards_reused, result.shards_written) == (5, SHARDS - 5)
    assert tree(tmp_path) == alone


def test_a_clock_that_jumps_in_the_middle(tmp_path, manifest, alone, monkeypatch):
    jumps = iter([-3e9, 3e9] * 1000)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: max(now() + next(jumps, 0), 0))
    take(manifest, tmp_path)
    assert tree(tmp_path) == alone


def test_control_c_with_workers_started_anew(tmp_path, inputs):
    """In a terminal's way: all processes hear it. One line, no process left; a half that it came into is cleared by the next command."""
    yaml = write_shard_yaml(tmp_path, *inputs, **SECTIONS | {"cache": {"codec": "plain", "documents_per_shard": 1}})
    arguments = ["cache-teacher", "--shard", str(yaml), "--root", str(tmp_path), "--workers", "2"]
    process = start_command(arguments, tmp_path / "stderr")
    holder_of(tmp_path / "caches/tiny", "train")
    os.killpg(process.pid, signal.SIGINT)
    process.join(60)
    err = (tmp_path / "stderr").read_text()
    assert process.exitcode == 2
    assert "Traceback" not in err, err
    assert re.findall("^error:.*", err, re.M) == ["error: interrupted; what is finished is kept, run the same command again to go on"]
    with pytest.raises(ProcessLookupError):
        for _ in range(300):  # the one that python keeps for its workers takes a moment longer
            os.killpg(process.pid, 0)
            time.sleep(0.1)
