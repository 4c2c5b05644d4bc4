"""SIGKILL around every publication of a capture, then the same command: the bytes of a run that nothing happened to (field case 29)."""

import shutil

import pytest
from captures import parquet, shard, take, tree
from forks import KINDS, Death, run
from tiny_teacher import write_teacher

from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store

PUBLISHED = {"teacher file": 4, "lease": 5, "payload": 3, "sidecar": 3, "log": 3}
"""How often in a capture of three shards; what is not named here comes once."""
POINTS = [Death("before", kind) for kind in KINDS] + [Death("after", kind, PUBLISHED.get(kind, 1)) for kind in KINDS]
EXTENDED = {"rule": 1, "lease": 2, "payload": 2, "sidecar": 1, "log": 2, "manifest": 1}
"""The first publication of its kind in an extension, or the last."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder)


@pytest.fixture(scope="module")
def manifest(inputs):
    """Two training shards, the second half full, and one of validation; a vocabulary that the teacher has a part in."""
    return of(inputs, 6)


def of(inputs, limit):
    return shard(*inputs, documents={"limit": limit, "validation": {"documents": 2}}, cache={"codec": "clusters", "calibration_rows": 40})


@pytest.fixture(scope="module")
def untouched(tmp_path_factory, manifest):
    cache = tmp_path_factory.mktemp("untouched") / "tiny"
    take(manifest, cache)
    return cache, tree(cache)


@pytest.fixture(scope="module")
def larger(tmp_path_factory, inputs):
    cache = tmp_path_factory.mktemp("larger")
    take(of(inputs, 9), cache)
    return tree(cache)


@pytest.mark.parametrize("point", POINTS, ids=lambda point: f"{point.when} {point.kind} {point.number}")
def test_a_capture_that_died_goes_on(tmp_path, manifest, untouched, point):
    cache = tmp_path / "tiny"
    assert run(manifest, cache, point) == -9
    assert (cache / "manifest.json").exists() == (point == Death("after", "manifest"))
    take(manifest, cache)
    assert tree(cache) == untouched[1]
    assert open_store(cache).names("leases") == []
    assert verify(open_store(cache), deep=True).bad == []


def test_the_points_are_all_there_are(untouched):
    """Each of a capture's files is published as often as is said above."""
    counts = {kind: sum(name.match(pattern) for name in published(untouched[0])) for kind, pattern in KINDS.items() if kind != "lease"}
    assert counts == {kind: PUBLISHED.get(kind, 1) for kind in KINDS if kind != "lease"}
    assert sum(counts.values()) == len(published(untouched[0]))


def published(cache):
    return [path.relative_to(cache) for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize(("kind", "number"), EXTENDED.items())
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_extension_that_died_goes_on_and_leaves_the_older_range_whole(tmp_path, inputs, untouched, larger, when, kind, number):
    cache = tmp_path / "tiny"
    shutil.copytree(untouched[0], cache)
    assert run(of(inputs, 9), cache, Death(when, kind, number)) == -9
    payloads = {name: data for name, data in untouched[1].items() if name.endswith((".arrow", "manifest.json"))}
    if (when, kind) != ("after", "manifest"):
        assert payloads.items() <= tree(cache).items()  # students go on reading
    take(of(inputs, 9), cache)
    after = tree(cache)
    left = after.keys() - larger.keys()
    assert [name.rpartition("-")[0] for name in left] == ["shards/train-00001"]  # the half full payload is `gc`'s
    assert {name: data for name, data in after.items() if name not in left} == larger
