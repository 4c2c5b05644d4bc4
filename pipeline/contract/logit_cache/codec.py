"""Between a document's arrays and its Arrow row: the plain codec of format version 0.

Cost at k = 64: 384 bytes of entries a token before compression. The mass of the kept entries is restored exactly:
float16 log-probabilities are rescaled to 1 - tail mass, a row at a time.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.contract.logit_cache.schema import DOCUMENT_SCHEMA, CachedDocument

CODEC = "plain"


def encode(documents: Sequence[CachedDocument], first_index: int) -> pa.RecordBatch:
    """One Arrow row a document; `first_index` is the index of the first one in its split."""
    columns: dict[str, Any] = {
        "document": np.arange(first_index, first_index + len(documents), dtype=np.int64),
        "input_tokens": np.array([len(document.token_ids) for document in documents], dtype=np.int32),
        **{name: [_stored(document, name) for document in documents] for name in DOCUMENT_SCHEMA.names[2:]},
    }
    arrays = [_column(columns[field.name], field.type) for field in DOCUMENT_SCHEMA]
    return pa.RecordBatch.from_arrays(arrays, schema=DOCUMENT_SCHEMA)


def _stored(document: CachedDocument, name: str) -> np.ndarray:
    values = getattr(document, name)
    return values.astype(DOCUMENT_SCHEMA.field(name).type.value_type.to_pandas_dtype(), copy=False)


def _column(values: np.ndarray | list[np.ndarray], kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray):
        return pa.array(values, type=kind)
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in values], dtype=np.int64)])
    flat = pa.array(np.concatenate(values), type=kind.value_type)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat, type=kind)


def decode(batch: pa.RecordBatch, row: int) -> CachedDocument:
    """The document in `row`, its kept entries rescaled to the recorded mass."""
    part = {name: _flat(batch.column(name), row) for name in DOCUMENT_SCHEMA.names[2:]}
    part["logprobs"] = restore_mass(part["logprobs"].astype(np.float32), part["counts"], part["tail_logprob"])
    return CachedDocument(**part)


def _flat(column: pa.LargeListArray, row: int) -> np.ndarray:
    start, stop = column.offsets[row].as_py(), column.offsets[row + 1].as_py()
    return column.values.slice(start, stop - start).to_numpy(zero_copy_only=True)


def restore_mass(logprobs: np.ndarray, counts: np.ndarray, tail_logprob: np.ndarray) -> np.ndarray:
    """Shift each row's logprobs [N] so that its entries sum to 1 - tail mass; sums in float64."""
    filled = counts > 0
    starts = (np.cumsum(counts, dtype=np.int64) - counts)[filled]
    if len(starts) == 0:
        return logprobs
    stored = np.log(np.add.reduceat(np.exp(logprobs, dtype=np.float64), starts))
    recorded = log_complement(tail_logprob[filled].astype(np.float64))
    shift = np.repeat(recorded - stored, counts[filled])
    return (logprobs + shift).astype(np.float32)


def log_complement(logprob: np.ndarray) -> np.ndarray:
    """log(1 - exp(logprob)) without cancellation, for logprob < 0 in float64.

    A tail that rounds to mass 1 in float32 leaves the kept entries the smallest mass that float32 tells from 1.
    """
    smallest = np.float64(np.finfo(np.float32).epsneg)
    logprob = np.minimum(logprob, np.log1p(-smallest))
    return np.where(logprob > -np.log(2.0), np.log(-np.expm1(logprob)), np.log1p(-np.exp(logprob)))
