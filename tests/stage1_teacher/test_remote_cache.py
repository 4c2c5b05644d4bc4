"""Documents and cache on object storage, from the first put to the last repair, on a real S3 server: the bytes of a folder."""

import json

import numpy as np
import pytest
from captures import everything, parquet, shard, take, tree, write_shard_yaml
from forks import Death, run, start
from tiny_teacher import text, write_teacher

from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store

SECTIONS = {"cache": {"codec": "clusters", "calibration_rows": 40}}
TEXTS = [None if i % 7 == 3 else text(1 + i % 23, i) for i in range(60)]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture
def bucket(s3_bucket, tmp_path, monkeypatch):
    """A bucket that holds the documents; copies are staged in a folder of this test."""
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "staging"))
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "5")
    s3_bucket.client.upload_file(str(parquet(tmp_path, TEXTS)), s3_bucket.name, "documents/000.parquet")
    return s3_bucket


def of(bucket, teacher, limit=10):
    documents = {"limit": limit, "validation": {"documents": 2, "every": 5}}
    return shard(teacher, f"{bucket.url}/documents/*.parquet", documents=documents, **SECTIONS)


def harm(bucket, key):
    """Flip a bit of an object."""
    data = bytearray(bucket.client.get_object(Bucket=bucket.name, Key=key)["Body"].read())
    data[len(data) // 2] ^= 1
    bucket.client.put_object(Bucket=bucket.name, Key=key, Body=bytes(data))


def test_the_commands(pipeline, bucket, teacher, tmp_path):
    """Capture, verify, extend, look, repair, collect: as on a disk, and in the end the same bytes."""
    yaml = write_shard_yaml(
        tmp_path, teacher, f"{bucket.url}/documents", documents={"limit": 6, "validation": {"documents": 2}}, **SECTIONS
    )

    def do(*command, root=f"{bucket.url}/x", fails=False):
        code, out, err = pipeline(*command, "--shard", yaml, "--root", root, "--json")
        assert code == (2 if fails else 0), err
        return json.loads(out)

    for root in (f"{bucket.url}/x", str(tmp_path / "here")):
        assert do("cache-teacher", root=root)["shards_written"] == 3
        assert do("cache", "verify", "--deep", root=root) == {"ok": True, "shards": 3, "bad": []}
        extended = do("cache-teacher", "--set", "documents.limit=14", root=root)
        assert (extended["shards_written"], extended["shards_reused"]) == (3, 2)
        assert len(do("cache", "gc", root=root)["files"]) == 1
    there, here = open_store(f"{bucket.url}/x/caches/tiny"), open_store(tmp_path / "here/caches/tiny")
    assert tree(there) == tree(here)
    assert {name for name in there.names() if name.startswith("logs")} == {name for name in here.names() if name.startswith("logs")}
    for mine, theirs in zip(everything(there), everything(here), strict=True):
        for name in ("token_ids", "ids", "logprobs", "tail_logprob", "label_logprob"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name))
    assert do("cache", "show", "--document", "3") == do("cache", "show", "--document", "3", root=str(tmp_path / "here"))
    listed = json.loads(pipeline("cache", "ls", "--root", f"{bucket.url}/x", "--json")[1])["caches"]
    assert [row["shard"] for row in listed] == ["tiny"]

    payload = read_manifest(there).splits["train"].shards[1].payload.name
    for key in (payload, "vocabulary.json"):
        harm(bucket, f"x/caches/tiny/{key}")
    assert {bad["file"] for bad in do("cache", "verify", "--deep", fails=True)["bad"]} == {payload, "vocabulary.json"}
    assert {bad["file"] for bad in do("cache", "repair")["mended"]} == {payload, "vocabulary.json"}
    assert tree(there) == tree(here)
    assert do("cache-teacher")["shards_written"] == 0
    assert bucket.open_uploads() == []


def test_one_dies_at_each_stage_and_two_go_on_at_once(bucket, teacher, tmp_path):
    where, manifest = f"{bucket.url}/x/caches/tiny", of(bucket, teacher, limit=6)
    for death in (Death("after", "vocabulary record"), Death("after", "payload")):
        assert run(manifest, where, death, environment=bucket.environment) == -9
    commands = [start(manifest, where, environment=bucket.environment) for _ in range(2)]
    for command in commands:
        command.join(60)
    assert [command.exitcode for command in commands] == [0, 0]
    cache = open_store(where)
    take(manifest, tmp_path / "here")
    assert tree(cache) == tree(tmp_path / "here")
    assert cache.names("leases") == [] and verify(cache, deep=True).bad == []
    whole = cache.read_bytes("manifest.json")
    cache.remove("manifest.json")
    assert run(manifest, where, Death("before", "manifest"), environment=bucket.environment) == -9
    take(manifest, cache)
    assert cache.read_bytes("manifest.json") == whole
