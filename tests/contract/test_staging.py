"""Remote files on local disk: fetched once, whole, by many processes at once, within a limit."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.contract.atomic_io import TEMPORARY_PREFIX
from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_bytes, hash_file
from pipeline.contract.remote import store as remote_store
from pipeline.contract.remote.staging import staging_folder, staging_limit

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["memory", "s3"])
def store(request, staging):
    return request.getfixturevalue(request.param)


def spoil(monkeypatch, fs, fault) -> list[str]:
    """Let each download write half of the file and then call `fault`; gives the list of downloads, which grows."""
    get, downloads = fs.get_file, []

    def get_file(remote, local, **options):
        downloads.append(remote)
        get(remote, local, **options)
        half = Path(local).stat().st_size // 2
        whole = Path(local).read_bytes()
        Path(local).write_bytes(whole[:half])
        fault(len(downloads))
        Path(local).write_bytes(whole)

    monkeypatch.setattr(fs, "get_file", get_file)
    return downloads


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_staged_file_is_not_fetched_again(store, staging):
    store.write_bytes("payload-1f3a9c", b"whole")
    path = store.fetch("payload-1f3a9c", 5)
    assert path.parent == staging
    assert path.name.endswith("-payload-1f3a9c")
    age(path, 1000)
    store.remove("payload-1f3a9c")
    assert store.fetch("payload-1f3a9c", 5) == path
    assert path.read_bytes() == b"whole"
    assert time.time() - path.stat().st_mtime < 500  # it was used just now
    assert [child.name for child in staging.iterdir()] == [path.name]


def test_files_of_one_name_in_two_folders_are_two(store):
    for folder in ("a", "b"):
        (store / folder).write_bytes("payload", folder.encode())
    assert [(store / folder).fetch("payload", 1).read_bytes() for folder in ("a", "b")] == [b"a", b"b"]


@pytest.mark.parametrize("staged", [b"", b"who", b"whole and more"])
def test_a_staged_file_of_another_size_is_fetched_again(store, staged):
    store.write_bytes("payload", b"whole")
    store.fetch("payload", 5).write_bytes(staged)
    assert store.fetch("payload", 5).read_bytes() == b"whole"


def test_a_remote_file_of_another_size_is_not_staged(store, staging):
    store.write_bytes("payload", b"whole")
    with pytest.raises(PipelineError, match="has 5 bytes, 4 were written"):
        store.fetch("payload", 4)
    assert list(staging.iterdir()) == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_half_a_download_is_not_taken_for_whole(store, staging, monkeypatch, backend, error):
    """fsspec's filecache alone would give the half at the second try."""

    def fail_at_first(number):
        if number == 1:
            raise error

    store.write_bytes("payload", b"whole")
    spoil(monkeypatch, backend(store), fail_at_first)
    with pytest.raises(error):
        store.fetch("payload", 5)
    assert list(staging.iterdir()) == []
    assert store.fetch("payload", 5).read_bytes() == b"whole"


def test_a_connection_that_breaks_is_tried_again(store, monkeypatch, backend):
    def break_twice(number):
        if number < 3:
            raise ConnectionResetError("gone")

    monkeypatch.setattr(remote_store.time, "sleep", lambda seconds: None)
    store.write_bytes("payload", b"whole")
    downloads = spoil(monkeypatch, backend(store), break_twice)
    assert store.fetch("payload", 5).read_bytes() == b"whole"
    assert len(downloads) == 3


def test_a_download_that_ends_too_soon_is_tried_again(store, monkeypatch, backend):
    get, downloads = backend(store).get_file, []

    def get_half(remote, local, **options):
        downloads.append(remote)
        get(remote, local, **options)
        if len(downloads) < 3:
            os.truncate(local, 2)

    monkeypatch.setattr(remote_store.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(backend(store), "get_file", get_half)
    store.write_bytes("payload", b"whole")
    assert store.fetch("payload", 5).read_bytes() == b"whole"
    assert len(downloads) == 3


def test_a_staged_file_is_on_disk_before_it_has_its_name(store, staging, monkeypatch):
    def stop(descriptor):
        raise KeyboardInterrupt

    store.write_bytes("payload", b"whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "fsync", stop)
        store.fetch("payload", 5)
    assert list(staging.iterdir()) == []


def test_a_connection_that_stays_broken_is_one_line(store, staging, monkeypatch, backend):
    def always_break(number):
        raise ConnectionResetError("gone")

    monkeypatch.setattr(remote_store.time, "sleep", lambda seconds: None)
    store.write_bytes("payload", b"whole")
    spoil(monkeypatch, backend(store), always_break)
    with pytest.raises(PipelineError, match="the endpoint cannot be reached \\(gone\\); check the network"):
        store.fetch("payload", 5)
    assert list(staging.iterdir()) == []


def test_an_answer_that_breaks_off_in_a_large_file_is_asked_for_again(s3, monkeypatch, backend):
    """Inside s3fs, where a large file comes in concurrent ranges that it does not repeat itself."""
    from aiobotocore.response import AioStreamingBody
    from aiohttp import ClientPayloadError

    read, broken = AioStreamingBody.read, []

    async def breaks_once(*arguments, **options):
        if not broken:
            broken.append(True)
            raise ClientPayloadError("cut off")
        return await read(*arguments, **options)

    monkeypatch.setattr(backend(s3), "default_block_size", 1000)
    data = os.urandom(10_000)
    s3.write_bytes("payload", data)
    monkeypatch.setattr(AioStreamingBody, "read", breaks_once)
    assert s3.fetch("payload", 10_000).read_bytes() == data
    assert broken


def test_no_space_is_one_line(store, staging, monkeypatch, backend):
    def full(number):
        raise OSError(28, os.strerror(28))

    store.write_bytes("payload", b"whole")
    spoil(monkeypatch, backend(store), full)
    with pytest.raises(PipelineError, match="payload: no space left while writing"):
        store.fetch("payload", 5)
    assert list(staging.iterdir()) == []


def test_an_error_of_the_staging_folder_is_not_blamed_on_the_backend(memory, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path / "file" / "staging"))
    memory.write_bytes("payload", b"whole")
    with pytest.raises(NotADirectoryError) as caught:
        memory.fetch("payload", 5)
    assert caught.value.filename.startswith(str(tmp_path / "file" / "staging"))


# The limit


def test_the_least_recently_used_give_way(store, staging, monkeypatch):
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "1000")
    for name in "abcd":
        store.write_bytes(name, name.encode() * 400)
    a, b = (store.fetch(name, 400) for name in "ab")
    age(a, 100), age(b, 50)
    store.fetch("a", 400)
    with b.open("rb") as reading:
        c = store.fetch("c", 400)
        assert sorted(staging.iterdir()) == sorted([a, c])
        assert reading.read() == b"b" * 400
    age(a, 10)
    d = store.fetch("d", 400)
    assert sorted(staging.iterdir()) == sorted([c, d])


def test_a_file_beyond_the_limit_is_refused_and_costs_nothing(store, staging, monkeypatch):
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "1000")
    store.write_bytes("small", bytes(900))
    store.write_bytes("large", bytes(1001))
    small = store.fetch("small", 900)
    with pytest.raises(PipelineError, match=r"its 1001 bytes do not fit into the 1000 .* set PIPELINE_STAGING"):
        store.fetch("large", 1001)
    assert list(staging.iterdir()) == [small]


def test_the_limit_is_half_of_what_the_disk_would_have(tmp_path, monkeypatch):
    monkeypatch.delenv("PIPELINE_STAGING_BYTES", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(10_000, 9_000, 1_000))
    assert staging_limit(tmp_path, 600) == 800  # and so it does not shrink as staged files take the disk
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "5")
    assert staging_limit(tmp_path, 600) == 5
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "5GB")
    with pytest.raises(PipelineError, match="PIPELINE_STAGING_BYTES=5GB: is no number of bytes"):
        staging_limit(tmp_path, 600)


def test_the_folder_is_one_a_user(tmp_path, monkeypatch):
    monkeypatch.delenv("PIPELINE_STAGING", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert staging_folder() == tmp_path / "block-stack-distillation" / "staging"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert staging_folder() == tmp_path / ".cache" / "block-stack-distillation" / "staging"


# Several processes

FETCH_ALL = """
import sys, time
from s3fs import S3FileSystem
from pipeline.contract.hashing import hash_bytes
from pipeline.contract.store import open_store
store, seconds, rounds, size, *names = sys.argv[1:]
store, downloads, get = open_store(store), 0, S3FileSystem._get_file
async def _get_file(*arguments, **options):
    global downloads
    downloads += 1
    time.sleep(float(seconds))
    return await get(*arguments, **options)
S3FileSystem._get_file = _get_file
def content(name):
    while True:
        try:
            return store.fetch(name, int(size)).read_bytes()
        except FileNotFoundError:  # another process needed its room before it was opened
            pass
for name in names * int(rounds):
    assert hash_bytes(content(name)) == name
print(downloads)
"""

HANG_IN_A_FETCH = """
import asyncio, sys
from aiobotocore.response import AioStreamingBody
from pipeline.contract.store import open_store
read, reads = AioStreamingBody.read, 0
async def _read(*arguments, **options):
    global reads
    reads += 1
    if reads == 4:
        print("half", flush=True)
        await asyncio.sleep(600)
    return await read(*arguments, **options)
AioStreamingBody.read = _read
open_store(sys.argv[1]).fetch(sys.argv[2], int(sys.argv[3]))
"""


def start(code: str, *arguments) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, stdout=subprocess.PIPE, text=True)


def named_by_content(store, count: int, size: int) -> list[str]:
    contents = [os.urandom(size) for _ in range(count)]
    for content in contents:
        store.write_bytes(hash_bytes(content), content)
    return [hash_bytes(content) for content in contents]


def test_processes_that_want_the_same_file_fetch_it_once(s3, staging):
    (name,) = named_by_content(s3, 1, 100_000)
    children = [start(FETCH_ALL, s3, 0.3, 1, 100_000, name) for _ in range(2)]
    downloads = [int(child.communicate(timeout=60)[0]) for child in children]
    assert sorted(downloads) == [0, 1]
    assert [hash_file(path) for path in staging.iterdir()] == [name]


def test_processes_share_a_limit(s3, staging, monkeypatch):
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "250000")
    names = named_by_content(s3, 4, 100_000)
    children = [start(FETCH_ALL, s3, 0, 5, 100_000, *names[turn:], *names[:turn]) for turn in range(2)]
    while any(child.poll() is None for child in children):
        with_room = [path for path in staging.glob("*") if not path.name.startswith(TEMPORARY_PREFIX)]
        assert len(with_room) <= 2
        time.sleep(0.002)
    assert sum(int(child.communicate()[0]) for child in children) > 4  # some were evicted; each may find what the other fetched
    assert len(list(staging.iterdir())) == 2


@pytest.fixture
def killed_in_a_fetch(s3, staging):
    """A process that was killed in the middle of the download of 600,000 bytes; the file's name."""
    (name,) = named_by_content(s3, 1, 600_000)
    with start(HANG_IN_A_FETCH, s3, name, 600_000) as child:
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert all(path.name.startswith(TEMPORARY_PREFIX) for path in staging.iterdir())
    return name


def test_a_fetch_after_kill_9_in_a_fetch(s3, staging, killed_in_a_fetch):
    halves = list(staging.glob(f"{TEMPORARY_PREFIX}*/*/*"))
    assert len(halves) == 1
    assert 0 < halves[0].stat().st_size < 600_000
    path = s3.fetch(killed_in_a_fetch, 600_000)
    assert hash_file(path) == killed_in_a_fetch
    assert list(staging.iterdir()) == [path]


def test_what_the_killed_left_is_removed_by_any_fetch(s3, staging, killed_in_a_fetch):
    s3.write_bytes("another", b"1")
    path = s3.fetch("another", 1)
    assert list(staging.iterdir()) == [path]


def test_a_download_keeps_its_room_until_it_ends(s3, monkeypatch):
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", "1000000")
    (name,) = named_by_content(s3, 1, 600_000)
    s3.write_bytes("another", bytes(500_000))
    with start(HANG_IN_A_FETCH, s3, name, 600_000) as child:
        assert child.stdout.readline() == "half\n"
        waiting = threading.Thread(target=s3.fetch, args=("another", 500_000))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        child.kill()
        waiting.join(10)
        assert not waiting.is_alive()
    assert s3.fetch("another", 500_000).stat().st_size == 500_000
