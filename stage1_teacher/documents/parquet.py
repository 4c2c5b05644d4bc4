"""Parquet in FineWeb-Edu's layout, read in memory that does not grow with the row group.

A row group may be the whole file (2 GB in the wild), so the column is streamed page by page through a small buffer and
64 rows exist at once: Arrow holds about three pages (measured: 25 MB for pages of 8 MB, however long the row group).
Strings are taken as bytes: Arrow does not check UTF-8 on reading, and a str made of it raises late, naming no row.
Pages that carry a checksum are verified.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import RawDocument, Undecodable, broken_file, decode
from stage1_teacher.documents.files import SourceFile, identify_files

SUFFIXES = (".parquet",)
ROWS_AT_ONCE = 64
BUFFER_BYTES = 1 << 18

# A damaged page surfaces as any of these: bad thrift, bad compression, a short read.
ARROW_ERRORS = (pa.ArrowException, OSError, EOFError)


@dataclass(frozen=True)
class ParquetDocuments:
    """One document a row; the other columns are not read."""

    files: Sequence[SourceFile]
    column: str
    undecodable: Undecodable

    def identity(self) -> dict[str, Any]:
        return {"source": "parquet", "column": self.column, "files": identify_files(self.files)}

    def __iter__(self) -> Iterator[RawDocument]:
        # All footers first: a truncated last file is found now, not after days of teacher time.
        for file in self.files:
            _open(file, self.column).close()
        return self._documents()

    def _documents(self) -> Iterator[RawDocument]:
        for file in self.files:
            for row, raw in enumerate(_rows(file, self.column)):
                origin = f"{file.path} row {row}"
                yield RawDocument(None, origin, "null") if raw is None else decode(raw, self.undecodable, origin)


def _open(file: SourceFile, column: str) -> pq.ParquetFile:
    try:
        parquet = pq.ParquetFile(file.path, buffer_size=BUFFER_BYTES, pre_buffer=False, page_checksum_verification=True)
    except ARROW_ERRORS as error:
        raise broken_file(file.path, "", error) from None
    _check_column(file, column, parquet.schema_arrow)
    return parquet


def _check_column(file: SourceFile, column: str, schema: pa.Schema) -> None:
    if column not in schema.names:
        raise DocumentError(
            f"{file.path}: has no column {column!r}; its columns are {', '.join(schema.names)}: --set documents.column=ONE_OF_THEM"
        )
    kind = schema.field(column).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)):
        raise DocumentError(f"{file.path}: column {column!r} holds {kind}, not text; --set documents.column=A_TEXT_COLUMN")


def _rows(file: SourceFile, column: str) -> Iterator[bytes | None]:
    row = 0
    with _open(file, column) as parquet:
        batches = parquet.iter_batches(batch_size=ROWS_AT_ONCE, columns=[column], use_threads=False)
        try:
            for batch in batches:
                values = _as_bytes(batch.column(0))
                yield from values
                row += len(values)
        except ARROW_ERRORS as error:
            raise broken_file(file.path, f"row {row}", error) from None
        if row != parquet.metadata.num_rows:
            short = EOFError(f"its footer promises {parquet.metadata.num_rows} rows")
            raise broken_file(file.path, f"row {row}", short)


def _as_bytes(column: pa.Array) -> list[bytes | None]:
    values: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()  # the text itself is not copied or checked by the cast
    return values
