"""One complete put: an object appears whole or not at all, and an upload that is stopped leaves no parts behind.

s3fs aborts its own multipart uploads on an Exception, not on Ctrl-C: its requests run in another thread, where they would go on.
So an upload runs here in a thread that no signal reaches, which looks between two pieces whether it should stop.
Only a killed process leaves parts; S3 removes them by a lifecycle rule of the bucket (AbortIncompleteMultipartUpload).
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO

from fsspec import AbstractFileSystem

from pipeline.contract.hashing import CHUNK_BYTES

PART_BYTES = 32 << 20
"""Of a multipart upload. S3 allows 10,000 parts of at least 5 MiB: files up to 312 GiB."""


def upload(fs: AbstractFileSystem, source: BinaryIO, size: int, path: str) -> None:
    """Put `size` bytes as one object. An exception, Ctrl-C included, is raised after the upload has been aborted."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(_send, fs, source, size, path, stop)
        try:
            sent.result()
        finally:
            stop.set()


def _send(fs: AbstractFileSystem, source: BinaryIO, size: int, path: str, stop: threading.Event) -> None:
    if size < PART_BYTES or not fs.async_impl:  # object stores are asynchronous; any other backend takes the bytes at once
        fs.pipe_file(path, source.read())
        return
    file = fs.open(path, "wb", block_size=PART_BYTES)
    try:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            if stop.is_set():
                raise InterruptedError
        file.close()
    except BaseException:
        with suppress(Exception):  # the first error is the one to tell
            file.discard()
        file.closed = True  # or the garbage collector would send the rest
        raise
