"""Parquet in FineWeb-Edu's layout, read in memory that does not grow with the row group.

A row group may be the whole file (2 GB in the wild), so the column is streamed page by page through a small buffer and
64 rows exist at once: Arrow holds about three pages (measured: 25 MB for pages of 8 MB, however long the row group).
Behind a URL the same pages are read, in ranges.
Strings are taken as bytes: Arrow does not check UTF-8 on reading, and a str made of it raises late, naming no row.
Pages that carry a checksum are verified.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import RawDocument, Undecodable, broken_file, decode
from stage1_teacher.documents.identity import identify_files
from stage1_teacher.documents.source_file import SourceFile

SUFFIXES = (".parquet",)
ROWS_AT_ONCE = 64
BUFFER_BYTES = 1 << 18
FOOTERS_AT_ONCE = 16
FOOTERS_A_BATCH = 1024

# A damaged page surfaces as any of these: bad thrift, bad compression, a short read.
ARROW_ERRORS = (pa.ArrowException, OSError, EOFError)


@dataclass(frozen=True)
class ParquetDocuments:
    """One document a row; the other columns are not read."""

    files: Sequence[SourceFile]
    column: str
    undecodable: Undecodable

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"source": "parquet", "column": self.column, "files": identify_files(self.files, like)}

    def __iter__(self) -> Iterator[RawDocument]:
        _ = self._footers_are_whole
        return self._documents()

    @cached_property
    def _footers_are_whole(self) -> bool:
        """All of them first, and once: a truncated last file is found now, not after days of teacher time.

        0.2 ms a local file; behind a URL the threads hide the waiting. Each is closed again before the next one of its thread.
        """
        with ThreadPoolExecutor(FOOTERS_AT_ONCE) as pool:
            for start in range(0, len(self.files), FOOTERS_A_BATCH):
                list(pool.map(self._check_footer, self.files[start : start + FOOTERS_A_BATCH]))
        return True

    def _check_footer(self, file: SourceFile) -> None:
        with _opened(file, self.column):
            pass

    def _documents(self) -> Iterator[RawDocument]:
        for file in self.files:
            path = str(file)
            for row, raw in enumerate(_rows(file, self.column)):
                origin = f"{path} row {row}"
                yield RawDocument(None, origin, "null") if raw is None else decode(raw, self.undecodable, origin)


@contextmanager
def _opened(file: SourceFile, column: str) -> Iterator[pq.ParquetFile]:
    """The file by its footer, the column seen to be there and to hold text."""
    with ExitStack() as closing:
        try:
            source = file.path if file.store is None else closing.enter_context(file.open())
            options = {"buffer_size": BUFFER_BYTES, "pre_buffer": False, "page_checksum_verification": True}
            parquet = closing.enter_context(pq.ParquetFile(source, **options))
        except ARROW_ERRORS as error:
            raise broken_file(file, "", error) from None
        _check_column(file, column, parquet.schema_arrow)
        yield parquet


def _check_column(file: SourceFile, column: str, schema: pa.Schema) -> None:
    if column not in schema.names:
        raise DocumentError(
            f"{file}: has no column {column!r}; its columns are {', '.join(schema.names)}: --set documents.column=ONE_OF_THEM"
        )
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DocumentError(f"{file}: column {column!r} holds {kind}, not text; --set documents.column=A_TEXT_COLUMN")


def _rows(file: SourceFile, column: str) -> Iterator[bytes | None]:
    row = 0
    with _opened(file, column) as parquet:
        batches = parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=[column], use_threads=False)
        try:
            for batch in batches:
                values = _as_bytes(batch.column(0))
                yield from values
                row += len(values)
        except ARROW_ERRORS as error:
            raise broken_file(file, f"row {row}", error) from None
        if row != parquet.metadata.num_rows:
            short = EOFError(f"its footer promises {parquet.metadata.num_rows} rows")
            raise broken_file(file, f"row {row}", short)


def _as_bytes(column: pa.Array) -> list[bytes | None]:
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()  # the text itself is not copied or checked by the cast
    return values
