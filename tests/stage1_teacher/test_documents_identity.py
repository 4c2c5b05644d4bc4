"""What identifies a list of files, and what the hub knows without reading."""

import hashlib
import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import xxhash
from corpora import fineweb, opened
from huggingface_hub._local_folder import read_download_metadata, write_download_metadata

from pipeline.contract.errors import DocumentError
from pipeline.contract.hashing import CHUNK_BYTES, hash_bytes, hash_file, hash_json
from stage1_teacher.documents.source_file import SourceFile


def test_identity_of_files_is_names_sizes_and_hashes(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "fw" / "000.parquet", ["x"])
    expected = {"name": "000.parquet", "bytes": path.stat().st_size, "xxh3_128": xxhash.xxh3_128_hexdigest(path.read_bytes())}
    identity = opened("parquet", path).identity()
    assert identity == {"source": "parquet", "column": "text", "files": [expected]}
    assert identity == opened("parquet", path.parent).identity() == opened("parquet", f"{tmp_path}/fw/*.parquet").identity()
    fineweb(path, ["y"])
    assert opened("parquet", path).identity() != identity


def test_hashes(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(2 * CHUNK_BYTES + 7)
    (tmp_path / "a").write_bytes(data)
    assert hash_file(tmp_path / "a") == hash_bytes(data) == xxhash.xxh3_128_hexdigest(data)
    assert hash_bytes(b"") == "99aa06d3014798d86001c324468d497f"  # the value for no input, seed 0, in xxHash's own documentation
    assert hash_json({"b": 1, "a": [2]}) == hash_json({"a": [2], "b": 1}) == hash_bytes(b'{"a":[2],"b":1}')


NAMES = ("sample/10BT/000.parquet", "sample/10BT/001.parquet")


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def as_hub_cache(folder: Path) -> Path:
    """Two large files as the hub's cache lays them out: links to blobs that are called by their sha256."""
    snapshot = folder / "datasets--owner--name" / "snapshots" / ("0" * 40)
    for name in NAMES:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        blob = fineweb(folder / "datasets--owner--name" / "blobs" / "incomplete", [name])
        blob = blob.rename(blob.parent / sha256(blob))
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    return snapshot


def as_download(folder: Path, cached: Path) -> Path:
    """The same two files as `hf download --local-dir` leaves them."""
    for name in NAMES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(cached / name, folder / name)
        write_download_metadata(folder, name, "0" * 40, sha256(folder / name))
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """The same documents in the hub's cache, downloaded to a folder, and copied by hand."""
    cache = as_hub_cache(tmp_path / "hub")
    download = as_download(tmp_path / "download", cache)
    shutil.copytree(cache / "sample", tmp_path / "copy" / "sample")
    return {"cache": cache / "sample", "download": download / "sample", "copy": tmp_path / "copy" / "sample"}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that were opened."""
    names: list[str] = []
    real_open = SourceFile.open
    monkeypatch.setattr(SourceFile, "open", lambda file: (names.append(file.name), real_open(file))[1])
    return names


def identity(folder: Path, like: dict[str, Any] | None = None) -> dict[str, Any]:
    return opened("parquet", folder).identity(like)


def test_what_the_hub_knows_is_not_read(places: dict[str, Path], reads: list[str]) -> None:
    cached, downloaded = identity(places["cache"]), identity(places["download"])
    assert cached == downloaded and not reads
    paths = [places["cache"] / "10BT" / name for name in ("000.parquet", "001.parquet")]
    expected = [{"name": f"10BT/{path.name}", "bytes": path.stat().st_size, "sha256": sha256(path)} for path in paths]
    assert cached["files"] == expected
    copied = identity(places["copy"])
    assert len(reads) == 2 and [set(file) for file in copied["files"]] == [{"name", "bytes", "xxh3_128"}] * 2


@pytest.mark.parametrize("here", ["cache", "download", "copy"])
@pytest.mark.parametrize("there", ["cache", "download", "copy"])
def test_equal_documents_compare_equal_wherever_the_copy_came_from(places: dict[str, Path], here: str, there: str) -> None:
    recorded = identity(places[there])
    assert identity(places[here], recorded) == recorded
    (places["copy"] / "10BT" / "001.parquet").write_bytes(b"changed")
    assert identity(places["copy"], recorded) != recorded


def test_another_or_damaged_record_gives_the_default(places: dict[str, Path]) -> None:
    default = identity(places["copy"])
    others = [{}, {"source": "installed", "files": 1234}, {"files": []}, {"files": [{"name": "10BT/000.parquet", "md5": "0"}]}]
    assert all(identity(places["copy"], other) == default for other in others)
    renamed = {"files": [{"name": "other.parquet", "sha256": "0"}] * 2}
    assert identity(places["copy"], renamed) == default


@pytest.mark.parametrize("change", ["written", "replaced by an older file", "record of another kind", "record cut", "git hash"])
def test_a_download_that_changed_since_is_read(places: dict[str, Path], reads: list[str], change: str) -> None:
    path = places["download"] / "10BT" / "000.parquet"
    record = places["download"].parent / ".cache/huggingface/download/sample/10BT/000.parquet.metadata"
    commit, etag, written = record.read_text().split()
    match change:
        case "written":
            path.write_bytes(path.read_bytes() + b"x")
            os.utime(path, (time.time() + 60,) * 2)
        case "replaced by an older file":
            os.utime(path, (1, 1))  # as cp -p does
            record.write_text(f"{commit}\n{etag}\n{path.stat().st_ctime - 0.5}\n")
        case "record of another kind":
            record.write_text(f"{commit}\n{etag}\nyesterday\n")
        case "record cut":
            record.write_text(commit)
        case "git hash":
            record.write_text(f"{commit}\n{etag[:40]}\n{written}\n")
    first = identity(places["download"])["files"][0]
    assert reads == ["10BT/000.parquet"] and first["xxh3_128"] == hash_file(path)


def test_the_records_are_those_of_the_hub_library(places: dict[str, Path]) -> None:
    folder = places["download"].parent
    theirs = [read_download_metadata(folder, name) for name in NAMES]
    assert [record and record.etag for record in theirs] == [file["sha256"] for file in identity(folder / "sample")["files"]]


def test_small_files_and_links_of_other_people_are_read(tmp_path: Path, reads: list[str]) -> None:
    targets = ["blobs/" + "a" * 40, "elsewhere/" + "a" * 64, "blobs/" + "g" * 64]
    for number, target in enumerate(targets):
        (tmp_path / target).parent.mkdir(exist_ok=True)
        (tmp_path / target).write_text(target)
        (tmp_path / f"{number}.txt").symlink_to(target)
    assert [set(file) for file in opened("text", tmp_path).identity()["files"]] == [{"name", "bytes", "xxh3_128"}] * 3
    assert reads == ["0.txt", "1.txt", "2.txt"]


def test_a_blob_that_is_gone_is_an_error(places: dict[str, Path]) -> None:
    (places["cache"] / "10BT" / "001.parquet").resolve().unlink()
    with pytest.raises(DocumentError, match=r"001\.parquet: the file is truncated, corrupt or unreadable .*No such file"):
        identity(places["cache"])
