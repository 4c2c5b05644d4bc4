"""Counts of a capture against its cache, and who is known to work on it."""

import json

import pytest
from contract.handmade import handmade, write_cache
from contract.handmade import write as write_shard

from pipeline.contract.errors import PipelineError
from pipeline.contract.logit_cache.index import RULE, Rule
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.process import process_mark
from pipeline.contract.sealed import write_sealed
from pipeline.contract.store import LocalStore
from pipeline.watch import capture_state
from pipeline.watch.capture_state import CaptureWatch
from pipeline.watch.words import capture_line

GONE = process_mark().rpartition("-")[0] + "-1"  # this process's number, of an earlier start


@pytest.fixture
def half(tmp_path):
    """Twelve of the 22 shards of a capture of 43 documents: no manifest, nobody at work."""
    cache = LocalStore(tmp_path / "tiny")
    shard = {"name": "tiny", "teacher": {"model": "m"}, "cache": {"documents_per_shard": 2}}
    shard |= {"documents": {"source": "parquet", "limit": 40, "validation": {"documents": 3}}}
    rule = Rule(format_version=FORMAT_VERSION, shard=shard, overrides={}, identity={}, codec="plain")
    write_sealed(cache, RULE, rule.model_dump())
    for index in range(12):
        write_shard(cache, index, [handmade(6 + index, index), handmade(3, 99 - index)], first=2 * index)
        write(cache.path / f"logs/train-{index:05d}.json", worker=GONE, tokens_per_second=100.0)
    return cache


def write(path, **values):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(values))


def hold(cache, unit, mark, beat=0):
    write(cache.path / f"leases/{unit}.json", holder=mark, worker="w", beat=beat)


def test_a_finished_cache_is_counted_by_its_manifest(tmp_path):
    shards = write_cache(tmp_path / "tiny", [handmade(4 + i, i) for i in range(9)], 4)
    view = CaptureWatch(LocalStore(tmp_path / "tiny")).look()
    assert (view.state, view.shards_done, view.shards, view.documents) == ("done", 3, 3, 9)
    assert view.tokens == sum(shard.tokens for shard in shards) == sum(3 + i for i in range(9))


def test_a_half_with_nobody_at_work_is_stopped(half):
    view = CaptureWatch(half).look()
    assert (view.state, view.shards_done, view.shards, view.documents) == ("stopped", 12, 22, 24)
    assert view.tokens == sum(5 + index + 2 for index in range(12))
    assert view.tokens_per_second is None and view.seconds_left is None


def test_rates_are_added_up_over_the_workers_that_live(half):
    hold(half, "train-00012", process_mark())
    hold(half, "train-00013", GONE)
    write(half.path / "logs/train-00003.json", worker=process_mark(), tokens_per_second=50.0)
    write(half.path / "logs/train-00009.json", worker=process_mark(), tokens_per_second=200.0)
    view = CaptureWatch(half).look()
    assert (view.state, view.in_hand, view.workers, view.tokens_per_second) == ("running", ("train-00012",), 1, 200.0)
    assert view.seconds_left == pytest.approx((43 - 24) * view.tokens / 24 / 200)


def test_a_moment_with_nothing_in_hand_is_no_end(half, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(capture_state.time, "monotonic", lambda: now)
    watch = CaptureWatch(half)
    hold(half, "train-00012", process_mark())
    watch.look()
    (half.path / "leases/train-00012.json").unlink()
    now += capture_state.SETTLE_SECONDS - 1
    assert watch.look().state == "running"
    now += 2
    assert watch.look().state == "stopped"


def test_a_worker_between_two_shards_is_at_work(half):
    write(half.path / "logs/train-00009.json", worker=process_mark(), tokens_per_second=200.0)
    assert CaptureWatch(half).look().state == "running"


def test_a_lease_of_another_machine_counts_while_it_is_kept(half, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(capture_state.time, "monotonic", lambda: now)
    watch = CaptureWatch(half)
    hold(half, "train-00012", "0123456789abcdef-7-7")
    assert watch.look().state == "running"
    now += capture_state.QUIET_SECONDS - 1
    hold(half, "train-00012", "0123456789abcdef-7-7", beat=1)
    assert watch.look().state == "running"
    now += capture_state.QUIET_SECONDS + 1
    assert watch.look().state == "stopped"


def test_new_and_removed_shards_are_seen(half):
    watch = CaptureWatch(half)
    assert watch.look().shards_done == 12
    write_shard(half, 12, [handmade(9, 12)], first=24)
    assert watch.look().shards_done == 13
    (half.path / "shards/train-00000.json").unlink()
    (half.path / "shards/train-00001.json").write_text("{")  # read already, and only its name counts then
    assert watch.look().shards_done == 12


def test_damage_is_passed_over(half):
    (half.path / "shards/train-00000.json").write_text("{")
    (half.path / "rule.json").write_text("{}")
    (half.path / "manifest.json").write_text("{}")
    (half.path / "logs/train-00001.json").write_text("[]")
    (half.path / "leases").mkdir()
    (half.path / "leases/train-00012.json").write_text("")
    view = CaptureWatch(half).look()
    assert (view.shards_done, view.shards) == (11, None) and view.state == "running"  # of an unreadable lease nothing is known


def test_a_bucket_is_not_listed_at_every_look(half, monkeypatch):
    monkeypatch.setattr(LocalStore, "is_local", False)
    watch = CaptureWatch(half)
    first = watch.look()
    (half.path / "shards/train-00000.json").unlink()
    assert watch.look() is first


def test_a_store_that_is_away_is_said_and_looked_at_again(half, monkeypatch):
    watch = CaptureWatch(half)
    before = watch.look()
    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "names", lambda *given: (_ for _ in ()).throw(PipelineError("s3://bucket: does not answer")))
        away = watch.look()
    assert away.problem == "s3://bucket: does not answer" and away.tokens == before.tokens and "does not answer" in capture_line(away)
    assert watch.look() == before
