"""A cache's whole life in a bucket, on a real S3 server: capture, kill, resume, extend, verify, mend, read, train."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from captures import SECTIONS, TEXTS, parquet, tree, write_shard_yaml
from s3_server import forget_clients
from tiny_teacher import text, write_teacher

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher.repair import repair

ROOT = Path(__file__).parents[2]
WORKERS = {"train": {"model": {"blocks": 1, "layers_per_block": 1}, "steps": 2, "global_batch_size": 4, "eval_interval": 2}}


@pytest.fixture
def bucket(s3_bucket, tmp_path, monkeypatch):
    """A fresh bucket that this process and its children reach, and a private staging folder."""
    for name, value in s3_bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "staging"))
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "2")
    forget_clients()
    yield s3_bucket
    forget_clients()


@pytest.fixture
def here(tmp_path, bucket):
    """A teacher on disk, documents in the bucket, a manifest that names both; and the same cache captured to a folder."""
    write_teacher(tmp_path / "teacher")
    documents = parquet(tmp_path, TEXTS + [text(1 + n % 20, n) for n in range(40)])
    open_store(f"{bucket.url}/documents").write_bytes("part-0.parquet", documents.read_bytes())
    documents.unlink()
    write_shard_yaml(tmp_path, tmp_path / "teacher", f"{bucket.url}/documents", student=WORKERS["train"])
    return tmp_path


def arguments(here: Path, root: str, *more: str) -> list[str]:
    return ["cache-teacher", "--shard", str(here / "tiny.yaml"), "--root", root, "--json", *more]


def test_a_capture_to_a_bucket_is_a_capture_to_a_folder(pipeline, here, bucket):
    code, out, err = pipeline(*arguments(here, bucket.url))
    assert code == 0, err
    assert pipeline(*arguments(here, str(here / "local")))[0] == 0
    cache = open_store(f"{bucket.url}/caches/tiny")
    assert tree(cache) == tree(here / "local/caches/tiny")
    assert json.loads(out)["cache"] == str(cache) and not bucket.open_uploads()
    code, out, _ = pipeline(*arguments(here, bucket.url))
    assert code == 0 and json.loads(out)["shards_written"] == 0
    assert verify(cache, deep=True).bad == []


def test_extended_in_the_bucket(pipeline, here, bucket):
    assert pipeline(*arguments(here, bucket.url))[0] == 0
    cache = open_store(f"{bucket.url}/caches/tiny")
    before = tree(cache)
    assert pipeline(*arguments(here, bucket.url, "--set", "documents.limit=30"))[0] == 0
    after = tree(cache)
    whole = [name for name in before if name.startswith("shards/train-0000") and name in after and after[name] == before[name]]
    assert len(whole) >= 2 * (14 // SECTIONS["cache"]["documents_per_shard"])
    assert LogitCache.open(cache).record.documents == 30


@pytest.mark.parametrize("damage", ["payload", "sidecar", "manifest"])
def test_mended_in_the_bucket(pipeline, here, bucket, damage):
    assert pipeline(*arguments(here, bucket.url))[0] == 0
    cache = open_store(f"{bucket.url}/caches/tiny")
    before = tree(cache)
    ends = {"payload": ".arrow", "sidecar": "train-00001.json", "manifest": "manifest.json"}
    name = next(name for name in before if name.endswith(ends[damage]) and not name.startswith("vocabulary"))
    data = bytearray(before[name])
    data[len(data) // 2] ^= 1
    cache.write_bytes(name, bytes(data))
    assert [bad.file for bad in verify(cache, deep=True).bad] == [name]
    repair(cache)
    assert tree(cache) == before


def test_two_machines_and_a_kill(here, bucket):
    """Two commands at once, one of them killed: the other takes over what it held."""
    root = f"{bucket.url}/two"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pipeline", *arguments(here, root)]
    first, second = (
        subprocess.Popen(command, cwd=here, env=environment | {"PIPELINE_STAGING": str(here / n)}, stderr=subprocess.PIPE, text=True)
        for n in "ab"
    )
    cache = open_store(f"{root}/caches/tiny")
    deadline = time.monotonic() + 120
    while not any(name.endswith(".arrow") for name in cache.names("shards")) and time.monotonic() < deadline:
        time.sleep(0.02)
    first.kill()
    first.communicate()
    _, err = second.communicate(timeout=180)
    assert second.returncode == 0, err
    assert verify(cache, deep=True).bad == []


def test_read_and_trained_from_the_bucket(pipeline, here, bucket):
    """Payloads are staged; the teacher's folder is copied; runs stay on disk."""
    assert pipeline(*arguments(here, bucket.url))[0] == 0
    cache = LogitCache.open(f"{bucket.url}/caches/tiny")
    assert [cache[i].tokens for i in range(len(cache))] == (cache.input_tokens - 1).tolist()
    assert any((here / "staging").rglob("*"))
    code, out, err = pipeline("train", "--shard", str(here / "tiny.yaml"), "--root", bucket.url, "--json", "--set", "name=remote")
    assert code == 0, err
    assert json.loads(out)["run"] == "remote" and Path("artifacts/runs/remote/result.json").is_file()
    code, out, err = pipeline("cache", "ls", "--root", bucket.url, "--json")
    assert [each["shard"] for each in json.loads(out)["caches"]] == ["tiny"]
