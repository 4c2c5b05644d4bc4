"""A file of documents, on this machine or behind a URL, opened the same way.

Behind a URL it is read in ranges as they are needed, a few MB at a time: nothing is downloaded whole, nothing kept.
"""

import io
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

REMOTE_BLOCK = 1 << 22  # bytes read ahead: about what an open remote file holds in memory


class RemoteReadError(OSError):
    """A store that failed or did not answer, whatever its client raised."""


@dataclass(frozen=True)
class SourceFile:
    """A file of documents; opened when it is read, never before."""

    path: str  # here, or in `store`
    name: str  # relative, with '/': what identity() records in place of the path
    store: Any = None  # fsspec's file system; None for this machine's own files
    listed_size: int | None = None  # bytes, where a store's listing told

    def __str__(self) -> str:
        """What messages and origins name; of a web address the query is left out, which may hold a signature."""
        if self.store is None:
            return self.path
        url = str(self.store.unstrip_protocol(self.path))
        return url.partition("?")[0] if url.startswith(("http://", "https://")) else url

    def size(self) -> int | None:
        """Bytes now (here) or as listed (behind a URL); None when that is not known."""
        if self.store is not None:
            return self.listed_size
        with suppress(OSError):
            return os.path.getsize(self.path)
        return None

    def open(self) -> io.BufferedReader:
        """A binary stream that can seek.

        Raises:
            OSError: when it cannot be opened; RemoteReadError, here or on reading, behind a URL.
        """
        return open(self.path, "rb") if self.store is None else io.BufferedReader(_Ranges(self.store, self.path))


class _Ranges(io.RawIOBase):
    """fsspec's file with one kind of error: each client has its own, and few of them are OSErrors."""

    def __init__(self, store: Any, path: str) -> None:
        self._file = _try(store.open, path, "rb", block_size=REMOTE_BLOCK, cache_type="readahead")

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        return int(_try(self._file.seek, offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def readinto(self, buffer: Any, /) -> int:
        data = _try(self._file.read, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        if not self.closed and hasattr(self, "_file"):
            self._file.close()
        super().close()


def _try(call: Any, *arguments: Any, **options: Any) -> Any:
    try:
        return call(*arguments, **options)
    except Exception as error:
        raise RemoteReadError(f"{type(error).__name__}: {error}") from error
