"""Small sets of documents as they lie about in the world, and the sources that read them."""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.open_source import open_documents

Texts = Sequence[str | bytes | None]


def documents(source: str, *files: Path | str, **more: Any) -> Documents:
    settings = {"source": source, "files": [str(file) for file in files], "limit": 1, "validation": {"documents": 1}} | more
    return Documents.model_validate(settings)


def opened(source: str, *files: Path | str, **more: Any) -> DocumentSource:
    return open_documents(documents(source, *files, **more))


def texts(source: DocumentSource) -> list[str | None]:
    return [document.text for document in source]


def string_array(values: Texts) -> pa.Array:
    """A string column that may hold bytes that are not UTF-8, as careless writers make them."""
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    binary = pa.array(raw, pa.binary())
    return pa.StringArray.from_buffers(len(binary), binary.buffers()[1], binary.buffers()[2], binary.buffers()[0])


def fineweb(path: Path, values: Texts, *, padding: int = 0, **options: Any) -> Path:
    """A parquet file in FineWeb-Edu's layout; `padding` makes the ids that much longer."""
    rows = len(values)
    ids = [f"<urn:uuid:{i}>" + "x" * padding for i in range(rows)]
    columns = {"text": string_array(values), "id": ids, "dump": ["CC-MAIN-2013-20"] * rows}
    columns |= {name: [f"{name} {i}" for i in range(rows)] for name in ("url", "date", "file_path", "language")}
    columns |= {"language_score": [0.9] * rows, "token_count": list(range(rows))}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


def pack(path: Path, data: bytes) -> Path:
    compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def zeros(data: bytearray, start: int, end: int) -> None:
    data[start:end] = bytes(end - start)
