"""A store behind an fsspec URL. What is put is read back; nothing is believed of a listing that was made before.

Credentials and endpoints come from the environment, as fsspec's backends read them. For S3 (s3fs 2026.9): AWS_ACCESS_KEY_ID and
AWS_SECRET_ACCESS_KEY, AWS_PROFILE and botocore's other sources; AWS_ENDPOINT_URL, before it AWS_ENDPOINT_URL_S3. Before all of
these come fsspec's own, read once when it is imported: FSSPEC_S3_KEY, FSSPEC_S3_SECRET, FSSPEC_S3_ENDPOINT_URL, FSSPEC_S3 (JSON).

Retries: botocore sends a request up to five times, s3fs five times over when a connection breaks, a part of an upload included.
Neither repeats a large read (over 50 MiB) that breaks in the middle of an answer; `_again` does. A server that knows none of S3's
newer checksums wants AWS_REQUEST_CHECKSUM_CALCULATION=when_required.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

import xxhash
from fsspec import AbstractFileSystem
from fsspec.core import url_to_fs

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, disk_errors
from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_bytes, hash_file
from pipeline.contract.remote.errors import backend_errors, connection_broke, s3_code
from pipeline.contract.remote.staging import file_size, stage
from pipeline.contract.remote.upload import upload
from pipeline.contract.store import Store

T = TypeVar("T")

READ_BYTES = 32 << 20
ATTEMPTS = 3
_TAKEN = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_UNCONDITIONAL = ("NotImplemented", "501")


@dataclass(frozen=True)
class RemoteStore(Store):
    """A folder behind an fsspec URL. The file system is looked up a call: it must not cross a fork, and fsspec keeps it."""

    url: str
    is_local: ClassVar[bool] = False

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, part: str) -> "RemoteStore":
        return RemoteStore(self._url(part))

    @property
    def path(self) -> Path:
        raise PipelineError(f"{self}: is not a folder on this machine; give a local path")

    def read_bytes(self, name: str) -> bytes:
        with self._backend(name) as (fs, path):
            return _again(lambda: fs.cat_file(path))

    def write_bytes(self, name: str, data: bytes) -> None:
        for _ in range(ATTEMPTS):  # another writer may have come in between; the last one wins
            self._upload(BytesIO(data), len(data), name)
            if self._holds(name, len(data), hash_bytes(data)):
                return
        raise PipelineError(f"{self._url(name)}: does not read back as it was written; check the store, then run the same command again")

    def create(self, name: str, data: bytes) -> bool:
        """Put under the condition that there is no such object: on S3 and GCS one of many callers wins.

        A backend that ignores the condition is looked at before and read back after; two callers may then both see themselves win.
        """
        return self.size(name) is None and self._put_if_absent(name, data) and self.read_bytes(name) == data

    def put(self, local: Path, name: str) -> None:
        size, digest = local.stat().st_size, hash_file(local)
        with local.open("rb") as source:
            self._upload(source, size, name)
        if not self._holds(name, size, digest):
            self.remove(name)
            raise PipelineError(
                f"{self._url(name)}: did not arrive whole and was removed; check the store, then run the same command again"
            )
        local.unlink()

    def size(self, name: str) -> int | None:
        try:
            with self._backend(name) as (fs, path):
                return file_size(fs, path)
        except FileNotFoundError:
            return None

    def hash(self, name: str) -> str:
        with self._backend(name) as (fs, path):
            digest, size = xxhash.xxh3_128(), file_size(fs, path)
            for start in range(0, size, READ_BYTES):
                digest.update(fs.cat_file(path, start=start, end=min(start + READ_BYTES, size)))
            return digest.hexdigest()

    def names(self, under: str = "") -> list[str]:
        with self._backend(under) as (fs, path), self._backend("") as (_, root):
            found = [name.removeprefix(root).lstrip("/") for name in fs.find(path) if name.startswith(f"{path}/")]
        return sorted(name for name in found if not name.endswith("/"))

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), self._backend(name) as (fs, path):
            fs.rm_file(path)

    @contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        """In a folder of its own under $TMPDIR."""
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as folder:
            path = Path(folder) / Path(name).name
            with disk_errors(path):
                yield path

    def fetch(self, name: str, bytes: int, digest: str | None = None) -> Path:
        """Staged under $PIPELINE_STAGING, within $PIPELINE_STAGING_BYTES; see `staging`."""
        with self._backend(name) as (fs, path):
            return _again(lambda: stage(fs, path, self._url(name), bytes, digest))

    def _url(self, name: str) -> str:
        return f"{self.url}/{name.strip('/')}" if name else self.url

    @contextmanager
    def _backend(self, name: str) -> Iterator[tuple[AbstractFileSystem, str]]:
        """The file system and its path of `name`; errors inside are told in one line. Listings are never kept."""
        with backend_errors(self._url(name)):
            yield url_to_fs(self._url(name), use_listings_cache=False)

    def _upload(self, source: BinaryIO, size: int, name: str) -> None:
        with self._backend(name) as (fs, path):
            upload(fs, source, size, path)

    def _holds(self, name: str, size: int, digest: str) -> bool:
        """Whether the object, read back, has this length and hash."""
        try:
            return self.size(name) == size and self.hash(name) == digest
        except FileNotFoundError:
            return False

    def _put_if_absent(self, name: str, data: bytes) -> bool:
        with self._backend(name) as (fs, path):
            try:
                fs.pipe_file(path, data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if s3_code(error) in _TAKEN:
                    return False
                if s3_code(error) not in _UNCONDITIONAL:
                    raise
                fs.pipe_file(path, data)
        return True


def _again(read: Callable[[], T]) -> T:
    """Try a read a few times while its connection breaks."""
    for attempt in range(1, ATTEMPTS):
        try:
            return read()
        except Exception as error:
            if not connection_broke(error):
                raise
            time.sleep(attempt)
    return read()
