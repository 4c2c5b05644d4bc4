"""A folder of artifacts, on a local disk or behind a URL, in which a file is whole or not there.

`open_store` takes a path, or any URL that fsspec knows: s3://bucket/folder, gs://bucket/folder, memory://folder, file:///folder.
Names are relative and may have slashes. Reading a local store needs the standard library and xxhash, nothing else.
"""

import errno
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, atomic_path, publish, temporary_path
from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_file

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


class Store(ABC):
    """What local and remote stores share. An error of the backend that is the user's to mend is a one-line PipelineError."""

    is_local: ClassVar[bool]

    @abstractmethod
    def __str__(self) -> str:
        """The path or URL as one would type it."""

    @abstractmethod
    def __truediv__(self, part: str) -> "Store":
        """The store of a sub-folder."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The folder on this machine.

        Raises:
            PipelineError: the store is not on this machine.
        """

    @property
    def name(self) -> str:
        """The last part of the path or URL."""
        return str(self).rstrip("/").rsplit("/", 1)[-1]

    @abstractmethod
    def read_bytes(self, name: str) -> bytes:
        """All of a small file.

        Raises:
            FileNotFoundError: it is not there.
        """

    @abstractmethod
    def write_bytes(self, name: str, data: bytes) -> None:
        """Make `data` the file's content in one step, durably; an older file is replaced.

        Raises:
            PipelineError: no space; or a remote store does not give back what was put.
        """

    def write_json(self, name: str, value: Any) -> None:
        """Write the bytes that `atomic_io.write_json` writes."""
        self.write_bytes(name, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())

    @abstractmethod
    def create(self, name: str, data: bytes) -> bool:
        """Write the file unless there is one; returns whether this call wrote it. `data` must name the caller.

        It is for leases, which save work. Correctness must not rest on it: some backends let two callers both succeed.
        """

    @abstractmethod
    def put(self, local: Path, name: str) -> None:
        """Publish a complete local file, which is gone from where it was. An exception leaves what was there before.

        Raises:
            PipelineError: a remote store does not give back what was put; what it has instead is removed.
        """

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Bytes of the file as of now, None when it is not there."""

    @abstractmethod
    def hash(self, name: str) -> str:
        """The file's xxh3-128, read as a stream.

        Raises:
            FileNotFoundError: it is not there.
        """

    @abstractmethod
    def names(self, under: str = "") -> list[str]:
        """Names of all files in this folder and below, or in its sub-folder `under`, sorted. For `gc` and `ls` only."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove the file if it is there."""

    @abstractmethod
    def scratch(self, name: str) -> AbstractContextManager[Path]:
        """A local path to build the file at before `put`; what is still there at the end is removed."""

    @abstractmethod
    def fetch(self, name: str, bytes: int, digest: str | None = None) -> Path:
        """A readable local file of it: itself, or a staged copy. `name` must carry a hash of the content, for copies are kept.

        Open it soon: another process may need its room, and a file that is open stays readable.
        A copy whose xxh3-128 is not `digest` is not kept: damage behind a URL must not outlive its repair here.

        Raises:
            FileNotFoundError: it is not there.
            PipelineError: it is not of `bytes` bytes, a copy is not of `digest`, or there is no room to stage it.
        """


@dataclass(frozen=True)
class LocalStore(Store):
    """A folder on a local disk."""

    folder: Path
    is_local: ClassVar[bool] = True

    def __str__(self) -> str:
        return str(self.folder)

    def __truediv__(self, part: str) -> "LocalStore":
        return LocalStore(self.folder / part)

    @property
    def path(self) -> Path:
        return self.folder

    def read_bytes(self, name: str) -> bytes:
        return self._file(name).read_bytes()

    def write_bytes(self, name: str, data: bytes) -> None:
        with atomic_path(self.folder / name) as temporary:
            temporary.write_bytes(data)

    def create(self, name: str, data: bytes) -> bool:
        path = self.folder / name
        with temporary_path(path) as temporary:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return _link(temporary, path)

    def put(self, local: Path, name: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            publish(local, path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            with atomic_path(path) as temporary:
                shutil.copyfile(local, temporary)
            local.unlink()

    def size(self, name: str) -> int | None:
        try:
            return self._file(name).stat().st_size
        except FileNotFoundError:  # even if another process has just removed it
            return None

    def hash(self, name: str) -> str:
        return hash_file(self._file(name))

    def names(self, under: str = "") -> list[str]:
        return sorted(_files(self.folder, self.folder / under))

    def remove(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def scratch(self, name: str) -> AbstractContextManager[Path]:
        return temporary_path(self.folder / name)

    def fetch(self, name: str, bytes: int, digest: str | None = None) -> Path:
        path = self._file(name)
        found = path.stat().st_size
        if found != bytes:
            raise PipelineError(f"{path}: has {found} bytes, {bytes} were written; write it again")
        return path

    def _file(self, name: str) -> Path:
        """As on an object store, a folder is no file."""
        path = self.folder / name
        if not path.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return path


def _link(temporary: Path, path: Path) -> bool:
    """Give a complete file its name unless the name is taken; returns whether it was free."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if path.exists():
            return False
        publish(temporary, path)
    return True


def _files(root: Path, folder: Path) -> Iterator[str]:
    for path in folder.rglob("*"):
        name = path.relative_to(root)
        if path.is_file() and not any(part.startswith(TEMPORARY_PREFIX) for part in name.parts):
            yield name.as_posix()


def open_store(location: str | Path) -> Store:
    """The store at a path or URL; nothing is read or made yet.

    Raises:
        PipelineError: a URL that names no bucket or folder.
    """
    protocol, separator, rest = str(location).partition("://")
    if not separator:
        return LocalStore(Path(location))
    if protocol in ("file", "local"):
        return LocalStore(Path(rest))
    if not rest.strip("/"):
        raise PipelineError(f"{location}: names no bucket or folder; give {protocol}://BUCKET/FOLDER")
    from pipeline.contract.remote.store import RemoteStore

    return RemoteStore(f"{protocol}://{rest.rstrip('/')}")
