"""Arrow columns of a record batch: one row a document, lists whose offsets count per document."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa


def field(name: str, values: pa.DataType) -> pa.Field:
    """A column of lists; 64-bit offsets, since a batch may hold more than 2^31 entries."""
    return pa.field(name, pa.large_list(values), nullable=False)


def tail_name(temperature: float) -> str:
    return "tail_logprob" if temperature == 1.0 else f"tail_logprob_{temperature:g}"


DOCUMENT_FIELDS = [
    pa.field("document", pa.int64(), nullable=False),  # index in its split
    pa.field("input_tokens", pa.int32(), nullable=False),  # T
    field("token_ids", pa.int32()),  # [T]
]


def record_batch(schema: pa.Schema, first_index: int, columns: Mapping[str, Sequence[np.ndarray]]) -> pa.RecordBatch:
    """A batch of documents from `first_index` of their split on; `columns` hold an array a document and a name."""
    lengths = np.array([len(part) for part in columns["token_ids"]], dtype=np.int32)
    made: dict[str, Any] = {"document": pa.array(np.arange(first_index, first_index + len(lengths))), "input_tokens": pa.array(lengths)}
    made |= {name: _lists(parts, schema.field(name).type) for name, parts in columns.items()}
    return pa.RecordBatch.from_arrays([made[name] for name in schema.names], schema=schema)


def _lists(parts: Sequence[np.ndarray], kind: pa.LargeListType) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts], dtype=np.int64)])
    flat = rounded(np.concatenate(parts), kind.value_type.to_pandas_dtype())
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat, type=kind.value_type), type=kind)


def rounded(values: np.ndarray, dtype: Any) -> np.ndarray:
    """`values` as `dtype`; a logprob below float16's range is that of probability 0, -inf."""
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


class Columns:
    """A record batch as numpy arrays: what its documents are cut from, without a copy."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._lists = {name: _flat(batch.column(name)) for name in batch.schema.names[2:]}
        self._made: dict[Hashable, Any] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._lists

    def flat(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """A column's values, all documents' one behind the other, and where each document starts in them and the last one ends."""
        return self._lists[name]

    def part(self, name: str, document: int) -> np.ndarray:
        """A document's part of a column."""
        values, starts = self._lists[name]
        return values[starts[document] : starts[document + 1]]

    def family(self, prefix: str) -> tuple[np.ndarray, np.ndarray]:
        """The columns `prefix`0, `prefix`1, ... one behind the other, and where in that each document starts in each.

        One array and not many: a compiled function takes some microseconds for each array that it is given.
        """
        return self.made(prefix, lambda: self._family(prefix))

    def made(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` gives for this batch, made once."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]

    def _family(self, prefix: str) -> tuple[np.ndarray, np.ndarray]:
        columns = [self._lists[f"{prefix}{n}"] for n in range(len(self._lists)) if f"{prefix}{n}" in self._lists]
        before = np.cumsum([0, *(len(values) for values, _ in columns[:-1])])
        starts = np.stack([starts for _, starts in columns], axis=1) + before
        return np.concatenate([values for values, _ in columns]), starts


def _flat(column: pa.LargeListArray) -> tuple[np.ndarray, np.ndarray]:
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)
