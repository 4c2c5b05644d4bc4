"""`pipeline cache gc` removes what no record names, and never what a worker is about to name."""

import json
import shutil

import pytest
from captures import parquet, shard, take, tree
from forks import Death, run
from tiny_teacher import write_teacher

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.process import process_mark
from pipeline.contract.store import open_store
from stage1_teacher.collect_garbage import collect_garbage

FOREIGN = {"holder": "0123456789abcdef-1-1", "worker": "w", "beat": 0}
HALVES = [".tmp-0123456789abcdef-1-1_77-manifest.json", "shards/.tmp-0123456789abcdef-1-1_77-train-00000.arrow", "teacher/.tmp-no-mark/all"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder)


def of(inputs, limit):
    return shard(*inputs, documents={"limit": limit, "validation": {"documents": 2, "every": 5}})


@pytest.fixture(scope="module")
def made(tmp_path_factory, inputs):
    """A cache that was extended: the older payload of its once half full shard is left."""
    cache = tmp_path_factory.mktemp("made") / "artifacts/caches/tiny"
    for limit in (6, 10):
        take(of(inputs, limit), cache)
    return cache


@pytest.fixture
def cache(made, tmp_path):
    return open_store(shutil.copytree(made, tmp_path / "artifacts/caches/tiny"))


@pytest.fixture(scope="module")
def at_once(tmp_path_factory, inputs):
    cache = tmp_path_factory.mktemp("at_once")
    take(of(inputs, 10), cache)
    return tree(cache)


def litter(cache):
    """What nobody needs, by name."""
    files = {"shards/train-00009-0123456789ab.arrow": b"orphan", "shards/train-00009.json": b"{}", "logs/train-00009.json": b"{}"}
    for name, data in {**files, **dict.fromkeys(HALVES, b"half")}.items():
        path = cache.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
    return set(files) | {name.removesuffix("/all") for name in HALVES}


def test_only_what_no_record_names_goes(cache, at_once):
    before = set(cache.names())
    orphans = {name for name in before - set(at_once) if name.startswith("shards/")}
    assert len(orphans) == 1
    found = collect_garbage(cache)
    assert set(found.files) == orphans and found.bytes > 0
    assert set(cache.names()) == before - orphans
    assert tree(cache) == at_once
    assert verify(cache, deep=True).bad == []
    assert collect_garbage(cache).files == []


def test_orphans_halves_and_leases_go(cache, at_once):
    lost = litter(cache)
    found = collect_garbage(cache)
    assert lost <= set(found.files)
    assert tree(cache) == at_once
    assert set(cache.names("logs")) == {f"logs/{name.removeprefix('shards/')}" for name in at_once if name[-9:-5].isdigit()}


def test_a_dry_run_names_and_removes_nothing(cache):
    litter(cache)
    before = sorted(cache.path.rglob("*"))
    found = collect_garbage(cache, dry_run=True)
    assert len(found.files) == 7
    assert sorted(cache.path.rglob("*")) == before
    assert collect_garbage(cache) == found


@pytest.mark.parametrize("holder", [FOREIGN, {"holder": process_mark(), "worker": "w", "beat": 0}])
def test_a_living_lease_is_respected(cache, at_once, holder):
    cache.write_json("leases/train-00000.json", holder)
    before = sorted(cache.path.rglob("*"))
    for dry_run in (True, False):
        with pytest.raises(CacheError, match=r"train-00000 is in the hands of a worker.* add --force if none is running"):
            collect_garbage(cache, dry_run=dry_run)
    assert sorted(cache.path.rglob("*")) == before
    assert "leases/train-00000.json" in collect_garbage(cache, force=True).files
    assert tree(cache) == at_once and cache.names("leases") == []


def test_a_lease_of_the_dead_is_garbage(cache, inputs):
    assert run(of(inputs, 13), cache.path, Death("after", "lease")) == -9
    assert len(cache.names("leases")) == 1
    collect_garbage(cache)
    assert cache.names("leases") == []


def test_what_a_living_process_is_writing_stays(cache):
    half = cache.path / f".tmp-{process_mark()}_77-manifest.json"
    half.write_bytes(b"half")
    collect_garbage(cache, force=True)
    assert half.exists()


def test_shards_of_an_extension_that_was_stopped_stay(cache, inputs, tmp_path):
    """Days of work may be in them."""
    assert run(of(inputs, 17), cache.path, Death("before", "manifest")) == -9
    collect_garbage(cache)
    done = take(of(inputs, 17), cache)
    assert done.shards_written == 0
    take(of(inputs, 17), tmp_path / "at-once")
    collect_garbage(cache)
    assert tree(cache) == tree(tmp_path / "at-once")


def test_without_a_manifest_nothing_is_judged(cache):
    (cache.path / "manifest.json").unlink()
    before = sorted(cache.path.rglob("*"))
    with pytest.raises(CacheError, match="no finished cache"):
        collect_garbage(cache, force=True)
    assert sorted(cache.path.rglob("*")) == before


def test_behind_a_url(made, at_once):
    cache = open_store("memory://gc/tiny")
    for name in open_store(made).names():
        cache.write_bytes(name, (made / name).read_bytes())
    cache.write_bytes("leases/train-00000.json", b"{half")
    with pytest.raises(CacheError, match="in the hands of a worker"):
        collect_garbage(cache)
    assert len(collect_garbage(cache, force=True).files) == 2
    assert tree(cache) == at_once


def test_the_command(cache, pipeline):
    code, out, err = pipeline("cache", "gc", "--shard", "tiny", "--dry-run", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert len(found["files"]) == 1 and found["bytes"] == cache.size(found["files"][0]) and found["removed"] is False
    assert "1 files, " in pipeline("cache", "gc", "--shard", "tiny")[1]
    cache.write_json("leases/train-00000.json", FOREIGN)
    code, _, err = pipeline("cache", "gc", "--shard", "tiny")
    assert code == 2 and err.count("\n") == 1
    assert pipeline("cache", "gc", "--shard", "tiny", "--force")[0] == 0
