"""What identifies a list of files: of each its name, its size and one hash."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, repeat
from typing import Any

import xxhash

from pipeline.contract.hashing import CHUNK_BYTES
from stage1_teacher.documents.base import broken_file
from stage1_teacher.documents.hub_hashes import hub_sha256
from stage1_teacher.documents.source_file import SourceFile

ALGORITHMS: dict[str, Callable[[], Any]] = {"xxh3_128": xxhash.xxh3_128, "sha256": hashlib.sha256}


def identify_files(files: Iterable[SourceFile], like: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Name, bytes and ALGORITHM: hex digits of each, in reading order.

    sha256 where the hub knows it, which reads nothing; else xxh3_128, which reads the file: behind a URL, all documents
    cross the network once for this and once more to be scored. Where `like`, an identity recorded earlier, has the same
    name at the same place, its algorithm is taken, so that what is equal compares equal wherever the copy came from.

    Raises:
        DocumentError: for a file that cannot be read.
    """
    recorded = (like or {}).get("files")
    records = chain(recorded if isinstance(recorded, list) else (), repeat({}))  # a source without files has their number there
    return [_identify(file, _algorithm(file, record)) for file, record in zip(files, records)]


def _algorithm(file: SourceFile, record: Mapping[str, Any]) -> str | None:
    return next((algorithm for algorithm in ALGORITHMS if algorithm in record and record.get("name") == file.name), None)


def _identify(file: SourceFile, algorithm: str | None) -> dict[str, Any]:
    if file.store is None and algorithm != "xxh3_128" and (known := hub_sha256(file.path)):
        return {"name": file.name, "bytes": file.size(), "sha256": known}
    return _read(file, algorithm or "xxh3_128")


def _read(file: SourceFile, algorithm: str) -> dict[str, Any]:
    digest, size = ALGORITHMS[algorithm](), 0
    try:
        with file.open() as stream:
            while chunk := stream.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise broken_file(file, "", error) from None
    return {"name": file.name, "bytes": size, algorithm: digest.hexdigest()}
