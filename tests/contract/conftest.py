"""Stores to test on: a folder, fsspec's memory, a bucket of a real S3 server."""

import uuid

import pytest

from pipeline.contract.remote import upload
from pipeline.contract.store import Store, open_store

MIB = 1 << 20


@pytest.fixture
def staging(tmp_path, monkeypatch):
    """The folder that remote files are staged in."""
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "staging"))
    monkeypatch.delenv("PIPELINE_STAGING_BYTES", raising=False)
    return tmp_path / "staging"


@pytest.fixture
def memory(staging) -> Store:
    """Empty memory, for remote files without a network."""
    from fsspec.implementations.memory import MemoryFileSystem

    MemoryFileSystem.store.clear()
    return open_store(f"memory://store-{uuid.uuid4().hex}")


@pytest.fixture
def s3(s3_bucket, staging, monkeypatch) -> Store:
    """A folder of a fresh bucket, with multipart uploads in parts as small as S3 allows."""
    monkeypatch.setattr(upload, "PART_BYTES", 5 * MIB)
    return open_store(s3_bucket.url) / "store"


@pytest.fixture(params=["folder", "memory", "s3"])
def store(request, tmp_path) -> Store:
    return open_store(tmp_path / "store") if request.param == "folder" else request.getfixturevalue(request.param)


@pytest.fixture
def backend():
    """Look up the file system behind a remote store, one a process, to wrap it where a fault must be injected."""
    from fsspec.core import url_to_fs

    return lambda store: url_to_fs(str(store), use_listings_cache=False)[0]
