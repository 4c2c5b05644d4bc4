"""JSON lines, plain, gzip or zstd, streamed line by line: memory is one line, whatever the file's size.

A compressed file that was cut is an error. gzip says so itself; zstandard's own stream reader ends quietly, so frames
are followed here.
"""

import codecs
import gzip
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import zstandard

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import RawDocument, Undecodable, broken_file, check_text, decode
from stage1_teacher.documents.identity import identify_files
from stage1_teacher.documents.source_file import SourceFile

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
COMPRESSED_CHUNK = 1 << 13  # small: 8 KiB of zstd can unfold to megabytes
LONGEST_WINDOW = 1 << 31  # corpora packed with zstd --long=31

READ_ERRORS = (OSError, EOFError, zlib.error, zstandard.ZstdError)


@dataclass(frozen=True)
class JsonlDocuments:
    """One document a line; blank lines are no documents."""

    files: Sequence[SourceFile]
    column: str
    undecodable: Undecodable

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"source": "jsonl", "column": self.column, "files": identify_files(self.files, like)}

    def __iter__(self) -> Iterator[RawDocument]:
        for file in self.files:
            origin = str(file)
            for number, line in _lines(file):
                if line.strip():
                    yield self._document(line, f"{origin} line {number}")

    def _document(self, line: bytes, origin: str) -> RawDocument:
        decoded = decode(line, self.undecodable, origin)
        if decoded.text is None:
            return decoded
        text = _text_of(decoded.text, self.column, origin)
        return RawDocument(None, origin, "null") if text is None else check_text(text, self.undecodable, origin)


def _text_of(line: str, column: str, origin: str) -> str | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{origin}: {line[:40]!r} is not JSON ({error}); mend the line or fetch the file again") from None
    if not isinstance(record, dict):
        raise DocumentError(f"{origin}: a JSON {type(record).__name__}, where a line is an object with a {column!r} key; mend the line")
    if column not in record:
        raise DocumentError(f"{origin}: has no key {column!r}; its keys are {', '.join(record)}: --set documents.column=ONE_OF_THEM")
    text = record[column]
    if text is not None and not isinstance(text, str):
        raise DocumentError(f"{origin}: {column!r} holds a {type(text).__name__}, not text; --set documents.column=A_TEXT_KEY")
    return text


def _lines(file: SourceFile) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with file.open() as packed, _unpacked(packed, file.name.lower()) as stream:
            if not packed.peek(1):
                raise EOFError("it is empty")
            for number, line in enumerate(stream, start=1):
                yield number, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except READ_ERRORS as error:
        raise broken_file(file, f"after line {number}", error) from None


def _unpacked(packed: io.BufferedReader, name: str) -> gzip.GzipFile | io.BufferedReader:
    if name.endswith(".gz"):
        return gzip.GzipFile(fileobj=packed)
    return io.BufferedReader(_Chunks(_zstd_chunks(packed))) if name.endswith(".zst") else packed


def _zstd_chunks(packed: io.BufferedReader) -> Iterator[bytes]:
    decompressor = zstandard.ZstdDecompressor(max_window_size=LONGEST_WINDOW)
    frame = decompressor.decompressobj()
    while data := packed.read(COMPRESSED_CHUNK):
        while data:
            if frame.eof:
                frame = decompressor.decompressobj()
            yield frame.decompress(data)
            data = frame.unused_data if frame.eof else b""
    if not frame.eof:
        raise EOFError("the last zstd frame does not end")


class _Chunks(io.RawIOBase):
    """A readable stream over chunks of bytes, for the line splitting of `io.BufferedReader`."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size
