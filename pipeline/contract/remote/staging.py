"""Remote files staged to local disk: fsspec's filecache, whole, shared by processes, and within a limit.

fsspec's filecache by itself downloads straight to the final name, takes what a failed download left for whole, and grows for ever.
Here every download has a filecache of its own in a private folder, and its file moves to its place by a rename. In the staging folder:

    HASH-NAME               a staged file, whole; its time is that of its last use
    .tmp-HASH-NAME          the private folder of a download
    .tmp-HASH-NAME.lock     held while the download is on; as many bytes long as the room that it keeps
    .tmp-room.lock          held for the moment in which room is made

A hold ends with its process, however it ends, and what a killed download left is removed by the next one, whoever does it.
$PIPELINE_STAGING is the folder, by default one a user; $PIPELINE_STAGING_BYTES the limit, by default half of what the disk has left.
"""

import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from fsspec import AbstractFileSystem
from fsspec.implementations.cached import WholeFileCacheFileSystem

from pipeline.contract.atomic_io import LOCK, TEMPORARY_PREFIX, disk_errors, publish, remove
from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_bytes, hash_file

POLL_SECONDS = 0.1
_NAME_CHARACTERS = 40


class Entry(NamedTuple):
    """A file in the staging folder: a staged one, or the lock of a download with the room it keeps."""

    used: float
    bytes: int
    path: Path

    @property
    def is_reserved(self) -> bool:
        return self.path.name.startswith(TEMPORARY_PREFIX)


def staging_folder() -> Path:
    """$PIPELINE_STAGING, else a folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("PIPELINE_STAGING") or Path(cache, "block-stack-distillation", "staging"))


def staging_limit(folder: Path, taken: int) -> int:
    """Bytes that all staged files together may have: $PIPELINE_STAGING_BYTES, else half of free disk and `taken` bytes together.

    Raises:
        PipelineError: the variable is no number of bytes.
    """
    chosen = os.environ.get("PIPELINE_STAGING_BYTES")
    if not chosen:
        return (shutil.disk_usage(folder).free + taken) // 2
    if not chosen.isdecimal():
        raise PipelineError(f"PIPELINE_STAGING_BYTES={chosen}: is no number of bytes; give one such as 200000000000")
    return int(chosen)


def stage(fs: AbstractFileSystem, path: str, url: str, size: int, digest: str | None = None) -> Path:
    """A whole local copy of `path`, downloaded unless there is one of `size` bytes.

    Raises:
        FileNotFoundError: it is not there.
        PipelineError: it is not of `size` bytes or, as downloaded, not of the xxh3-128 `digest`; or does not fit within the limit.
    """
    name = f"{hash_bytes(url.encode())}-{url.rsplit('/', 1)[-1][-_NAME_CHARACTERS:]}"
    folder = staging_folder()
    staged = folder / name
    if not _use(staged, size):
        folder.mkdir(parents=True, exist_ok=True)
        with _hold(folder / f"{TEMPORARY_PREFIX}{name}{LOCK}") as lock:
            if not _use(staged, size):  # another process may have staged it meanwhile
                _make_room(folder, url, size, lock)
                _download(fs, path, url, size, digest, folder / f"{TEMPORARY_PREFIX}{name}", staged)
    return staged


def file_size(fs: AbstractFileSystem, path: str) -> int:
    """Bytes of a file as of now.

    Raises:
        FileNotFoundError: it is not there, or is a folder.
    """
    found = fs.info(path)
    if found["type"] != "file":
        raise FileNotFoundError(path)
    return found["size"]


def _use(staged: Path, size: int) -> bool:
    """Whether there is a staged file of `size` bytes; if so it has just been used."""
    try:
        whole = staged.stat().st_size == size
        if whole:
            os.utime(staged)
    except FileNotFoundError:
        return False
    return whole


def _download(fs: AbstractFileSystem, path: str, url: str, size: int, digest: str | None, private: Path, staged: Path) -> None:
    """Bring the file into a filecache in the folder `private` and publish it from there. The caller holds the lock of both."""
    if (found := file_size(fs, path)) != size:
        raise PipelineError(f"{url}: has {found} bytes, {size} were written; write it again")
    folder = private / uuid.uuid4().hex  # a download that Ctrl-C cut off may still write, in fsspec's thread, where it began
    cache = WholeFileCacheFileSystem(fs=fs, cache_storage=str(folder), expiry_time=0, skip_instance_cache=True)
    with disk_errors(staged), cache.open(path) as file:
        if os.fstat(file.fileno()).st_size != size:
            raise ConnectionError(f"{url}: was cut off on its way")
        if digest and hash_file(file.name) != digest:
            raise PipelineError(f"{url}: does not have the hash {digest} it was written with; write it again")
        publish(Path(file.name), staged)


def _make_room(folder: Path, url: str, size: int, lock: BinaryIO) -> None:
    """Keep `size` bytes for the holder of `lock`, once downloads that are on leave so much.

    Raises:
        PipelineError: the file is larger than the limit.
    """
    while not _reserve(folder, url, size, lock):
        time.sleep(POLL_SECONDS)


def _reserve(folder: Path, url: str, size: int, lock: BinaryIO) -> bool:
    with _hold(folder / f"{TEMPORARY_PREFIX}room{LOCK}"):
        _sweep(folder)
        entries = _entries(folder)
        taken = sum(entry.bytes for entry in entries)
        limit = staging_limit(folder, taken)
        if size > limit:
            raise PipelineError(
                f"{url}: its {size} bytes do not fit into the {limit} that {folder} may hold; "
                "set PIPELINE_STAGING to a folder on a larger disk, or PIPELINE_STAGING_BYTES to more"
            )
        if size + sum(entry.bytes for entry in entries if entry.is_reserved) > limit:
            return False
        _evict([entry for entry in entries if not entry.is_reserved], taken + size - limit)
        os.ftruncate(lock.fileno(), size)
        return True


def _evict(staged: list[Entry], over: int) -> None:
    """Remove the least recently used files until `over` bytes are free. Who has one open goes on reading it."""
    for entry in sorted(staged):
        if over <= 0:
            return
        entry.path.unlink(missing_ok=True)
        over -= entry.bytes


def _entries(folder: Path) -> list[Entry]:
    """All files of the staging folder; the private folders of downloads stand in it by the length of their locks."""
    entries = []
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # a download has just ended
            found = path.stat()
            if stat.S_ISREG(found.st_mode):
                entries.append(Entry(found.st_mtime, found.st_size, path))
    return entries


def _sweep(folder: Path) -> None:
    """Remove what killed downloads left: their locks are free."""
    for path in folder.glob(f"{TEMPORARY_PREFIX}*{LOCK}"):
        with path.open("ab") as lock, suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _clear(path)


@contextmanager
def _hold(path: Path) -> Iterator[BinaryIO]:
    """Wait for the lock at `path` and hold it; it and the private folder of the same name are gone at the end."""
    while True:
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.fstat(lock.fileno()).st_nlink == 0:
                continue  # its last holder has just removed it
            try:
                yield lock
            finally:
                _clear(path)
            return


def _clear(lock: Path) -> None:
    remove(lock.with_suffix(""))
    lock.unlink(missing_ok=True)
