"""Files that are either whole or not there: temp, fsync, rename, fsync the folder.

The promise behind every artifact: a reader never meets a half-written file under its final name, whatever
kills the writer (SIGKILL, a full disk, a power cut).
"""

import errno
import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.contract.errors import PipelineError
from pipeline.contract.process import is_alive, is_gone, process_mark

TEMPORARY_PREFIX = ".tmp-"
LOCK = ".lock"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a write that found no space into one line that names `path`.

    Raises:
        PipelineError: on ENOSPC, EDQUOT or EFBIG, as Python, torch and safetensors report them.
    """
    try:
        yield
    except Exception as error:
        if _no_space(error):
            raise PipelineError(
                f"{getattr(error, 'filename', None) or path}: no space left while writing; "
                "nothing half-written is believed: free some space and run the same command again"
            ) from error
        raise


def _no_space(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in _FULL:
        return True
    # torch.save and safetensors raise errors of their own and keep the cause in the text
    return "inline_container" in str(error) or any(f"os error {code}" in str(error) for code in _FULL)


@contextmanager
def temporary_path(path: Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; what is still there at the end is removed. Publish it in between.

    Raises:
        PipelineError: when the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / _temporary_name(path.name)
    try:
        with disk_errors(path):
            yield temporary
    finally:
        remove(temporary)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Give a temporary path (file or folder) that becomes `path` only if the body ends without an exception.

    A folder replaces an existing folder of the same name.

    Raises:
        PipelineError: when the disk is full.
    """
    with temporary_path(path) as temporary:
        yield temporary
        publish(temporary, path)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold `folder` against another writer on this machine; the hold ends with the process, however it ends.

    Raises:
        PipelineError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PipelineError(
                f"{folder}: another process is writing there; wait for it or stop it, then run the same command again"
            ) from None
        yield


def publish(temporary: Path, path: Path) -> None:
    """Make a complete `temporary` file or folder visible as `path`, durably."""
    if temporary.is_dir():
        for child in sorted(temporary.rglob("*")):
            _fsync(child)
    _fsync(temporary)
    if temporary.is_dir() and path.exists():
        retired = path.parent / _temporary_name("retired")
        path.rename(retired)
        temporary.rename(path)
        shutil.rmtree(retired)
    else:
        temporary.rename(path)
    _fsync(path.parent)


def remove(path: Path) -> None:
    """Remove a file or a folder if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sweep_temporaries(folder: Path) -> None:
    """Remove what killed writers of this machine left in `folder`; what living ones are writing, and other machines', stays."""
    for leftover in folder.glob(f"{TEMPORARY_PREFIX}*"):
        if is_gone(_writer(leftover)):
            remove(leftover)


def writer_lives(temporary: Path) -> bool:
    """Whether a living process of this machine is writing this temporary file."""
    return is_alive(_writer(temporary))


def _writer(temporary: Path) -> str:
    """The mark in the name of a temporary file; "" in a name of another form."""
    return temporary.name.removeprefix(TEMPORARY_PREFIX).partition("_")[0]


def _temporary_name(name: str) -> str:
    return f"{TEMPORARY_PREFIX}{process_mark()}_{uuid.uuid4().hex}-{name}"


def write_text(path: Path, text: str) -> None:
    """Write a small text file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, the same bytes for the same value."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")
