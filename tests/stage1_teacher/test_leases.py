"""Leases: one holder, as long as it lives and rewrites; no clock is believed, of this machine or another (field case 28)."""

import json
import os
import subprocess
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.process import process_mark
from pipeline.contract.store import LocalStore, open_store
from stage1_teacher.leases import Leases, living_leases, require_no_worker, sweep_leases

ROOT = Path(__file__).parents[2]
FOREIGN = "0123456789abcdef-1-1"
NAME = "leases/train-00000.json"


@pytest.fixture(params=["folder", "memory"])
def cache(request, tmp_path):
    return open_store(f"memory://{uuid.uuid4().hex}") if request.param == "memory" else LocalStore(tmp_path)


@pytest.fixture
def leases(cache):
    """Make leases; all are given back at the end."""
    made = []

    def make(patience=30.0):
        made.append(Leases(cache, patience))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def dead():
    code = "from pipeline.contract.process import process_mark; print(process_mark(), end='')"
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def write(cache, holder, beat=0):
    cache.write_json(NAME, {"holder": holder, "worker": "another", "beat": beat})


def seconds_until(condition, most=20.0):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < most
        time.sleep(0.02)
    return time.monotonic() - start


def test_one_holder_until_it_is_dropped(cache, leases):
    one, other = leases(), leases()
    assert one.take("train-00000") and one.take("train-00000")
    assert not other.take("train-00000") and other.take("train-00001")
    assert living_leases(cache) == ["train-00000", "train-00001"]
    one.drop("train-00000")
    assert other.take("train-00000") and not one.take("train-00000")
    other.close()
    assert cache.names("leases") == []


def takers_at_once(folder, count):
    """How many of `count` workers that ask at the same time are told that the unit is theirs."""
    workers = [Leases(LocalStore(folder)) for _ in range(count)]
    with ThreadPoolExecutor(count) as pool:
        won = list(pool.map(lambda each: each.take("train-00000"), workers))
    for each in workers:
        each.close()
    return sum(won)


def test_one_of_many_takes_it(tmp_path):
    assert takers_at_once(tmp_path, 12) == 1


def test_a_dead_process_holds_nothing(cache, leases, dead):
    write(cache, dead)
    assert living_leases(cache) == []
    assert leases().take("train-00000")
    assert living_leases(cache) == ["train-00000"]


def test_of_many_that_find_it_stale_one_takes_it_over(tmp_path, dead):
    write(LocalStore(tmp_path), dead)
    assert takers_at_once(tmp_path, 6) == 1


def test_the_dead_are_swept_and_the_unknown_stay(cache, dead):
    for unit, holder in (("a", dead), ("b", process_mark()), ("c", FOREIGN)):
        cache.write_json(f"leases/{unit}.json", {"holder": holder, "worker": "another", "beat": 0})
    cache.write_bytes("leases/d.json", b"half a le")
    sweep_leases(cache)
    assert living_leases(cache) == ["b", "c", "d"]
    with pytest.raises(CacheError, match=r": b is in the hands of a worker, .* wait for the capture to end, or add --force"):
        require_no_worker(cache)


@pytest.mark.parametrize("content", [json.dumps({"holder": FOREIGN, "worker": "w", "beat": 3}).encode(), b"", b"{half", b"[1]", b"\xff"])
def test_another_machine_is_respected_for_a_while(cache, leases, content):
    mine = leases(patience=0.2)
    cache.write_bytes(NAME, content)
    assert 0.2 < seconds_until(lambda: mine.take("train-00000")) < 5
    assert living_leases(cache) == ["train-00000"]


def test_another_machine_that_lives_is_respected_for_ever(cache, leases):
    mine, beats = leases(patience=0.4), 0
    start = time.monotonic()
    while time.monotonic() - start < 1:
        write(cache, FOREIGN, beat=(beats := beats + 1))
        assert not mine.take("train-00000")
        time.sleep(0.1)


def test_a_holder_keeps_its_lease_fresh(cache, leases):
    one, other = leases(patience=0.8), leases(patience=0.8)
    assert one.take("train-00000")
    written = cache.read_bytes(NAME)
    start = time.monotonic()
    while time.monotonic() - start < 2:
        assert not other.take("train-00000")
        time.sleep(0.05)
    assert cache.read_bytes(NAME) != written


def test_no_clock_is_believed(tmp_path, leases, monkeypatch, dead):
    """Neither one that jumps by years nor the times of files."""
    cache, mine = LocalStore(tmp_path), Leases(LocalStore(tmp_path), 0.5)
    for years in (-40, 0, 40):
        jumped = time.time() + years * 3.15e7
        monkeypatch.setattr(time, "time", lambda jumped=jumped: jumped)
        write(cache, FOREIGN, beat=years)
        os.utime(tmp_path / NAME, (jumped, jumped))
        assert not mine.take("train-00000")
    assert seconds_until(lambda: mine.take("train-00000")) > 0.4
    mine.drop("train-00000")
    write(cache, dead)
    os.utime(tmp_path / NAME, (9e9, 9e9))
    assert mine.take("train-00000")
    mine.close()


def test_what_another_has_taken_over_is_not_dropped(cache, leases):
    """This process slept for longer than others wait."""
    mine, other = leases(), leases()
    assert mine.take("train-00000")
    write(cache, FOREIGN)
    taken = cache.read_bytes(NAME)
    mine.drop("train-00000")
    assert cache.read_bytes(NAME) == taken
    assert not other.take("train-00000")


def test_what_another_has_taken_over_is_not_written_again(cache, leases):
    mine = leases(patience=0.2)
    assert mine.take("train-00000")
    with mine._lock:  # not between a beat's look and its writing, which nothing on a plain store can rule out
        write(cache, FOREIGN)
    taken = cache.read_bytes(NAME)
    time.sleep(0.5)
    assert cache.read_bytes(NAME) == taken
    mine.close()
    assert cache.read_bytes(NAME) == taken


def test_a_store_that_is_away_for_a_moment(cache, leases, monkeypatch):
    """The lease is kept fresh again as soon as it is back."""
    mine, kind, fail = leases(patience=0.2), type(cache), True
    assert mine.take("train-00000")
    write_bytes = kind.write_bytes

    def flaky(store, name, data):
        if fail:
            raise PipelineError("the endpoint cannot be reached")
        write_bytes(store, name, data)

    monkeypatch.setattr(kind, "write_bytes", flaky)
    time.sleep(0.2)
    written, fail = cache.read_bytes(NAME), False
    seconds_until(lambda: cache.read_bytes(NAME) != written)


@pytest.mark.parametrize("value", ["soon", "", "0", "-1", "inf", "nan"])
def test_a_wrong_patience_is_one_line(tmp_path, monkeypatch, value):
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", value)
    with pytest.raises(PipelineError, match=f"PIPELINE_LEASE_SECONDS={value}: is no number of seconds above 0"):
        Leases(LocalStore(tmp_path))


def test_patience_is_in_the_environment(tmp_path, monkeypatch):
    assert Leases(LocalStore(tmp_path)).patience == 60
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "2.5")
    assert Leases(LocalStore(tmp_path)).patience == 2.5
