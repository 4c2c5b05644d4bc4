"""Read a cache by document, in any order, with bounded memory: a few open shards, a few decompressed batches."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
from xxhash import xxh3_64_hexdigest

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.codec import Codec, make_codec, needs_vocabulary
from pipeline.contract.logit_cache.columns import Columns, tail_name
from pipeline.contract.logit_cache.index import (
    BatchRecord,
    CacheManifest,
    FileRecord,
    ShardRecord,
    Split,
    SplitRecord,
    read_manifest,
    unpack_lengths,
)
from pipeline.contract.logit_cache.padded import PaddedDocuments, read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.store import Store, open_store

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

OPEN_SHARDS, OPEN_BATCHES = 16, 8
FETCHES = 3


class Recent(Generic[Key, Value]):
    """Keep the `size` most recently used values."""

    def __init__(self, size: int, make: Callable[[Key], Value]) -> None:
        self._size, self._make = size, make
        self._values: OrderedDict[Key, Value] = OrderedDict()

    def get(self, key: Key) -> Value:
        if key not in self._values:
            self._values[key] = self._make(key)
            if len(self._values) > self._size:
                self._values.popitem(last=False)
        self._values.move_to_end(key)
        return self._values[key]


@dataclass
class LogitCache:
    """One split of a cache: `len(cache)` documents, `cache[i]` decoded, `cache.padded([i, j, ...])` as rectangles.

    Example:
        cache = LogitCache.open("artifacts/caches/installed-docs", split="train")
        document = cache[42]
    """

    store: Store
    manifest: CacheManifest
    split: Split
    _payloads: Recent[int, pa.Buffer] = field(init=False, repr=False)
    _batch_ends: Recent[int, np.ndarray] = field(init=False, repr=False)
    _batches: Recent[tuple[int, int], Columns] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._payloads = Recent(OPEN_SHARDS, self._open_payload)
        self._batch_ends = Recent(OPEN_SHARDS, lambda shard: np.cumsum([batch.documents for batch in self.record.shards[shard].batches]))
        self._batches = Recent(OPEN_BATCHES, self._open_batch)

    def __reduce__(self) -> Any:
        """A worker process opens its own files."""
        return LogitCache, (self.store, self.manifest, self.split)

    @classmethod
    def open(cls, location: str | Path | Store, split: Split = "train") -> "LogitCache":
        """Open a finished cache in a folder or at a URL.

        Raises:
            CacheError: no cache there, the split was not captured, or a payload is missing or of another size.
        """
        store = location if isinstance(location, Store) else open_store(location)
        manifest = read_manifest(store)
        if split not in manifest.splits:
            raise CacheError(f"{store}: split {split!r} is not captured; run 'pipeline cache-teacher --shard {store.name} --split {split}'")
        cache = cls(store, manifest, split)
        if store.is_local:
            for shard in cache.record.shards:
                problem = shard.payload.problem(store, deep=False)
                if problem:
                    cache._refuse(shard, problem)
        return cache

    @property
    def record(self) -> SplitRecord:
        return self.manifest.splits[self.split]

    @cached_property
    def targets(self) -> Targets:
        return Targets.model_validate(self.manifest.shard["targets"])

    @cached_property
    def codec(self) -> Codec:
        return make_codec(self.manifest.codec, self.targets, self._vocabulary())

    def __len__(self) -> int:
        return self.record.documents

    @cached_property
    def input_tokens(self) -> np.ndarray:
        """[documents] int32, T of every document, from the records alone."""
        parts = [unpack_lengths(shard.lengths) for shard in self.record.shards]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)

    def __getitem__(self, index: int) -> CachedDocument:
        """Decode document `index`.

        Raises:
            IndexError: outside [0, len).
            CacheError: the payload cannot be read.
        """
        place, row = self._place(index)
        return self._use(place, partial(self._document, row))

    def padded(self, indices: Sequence[int], temperature: float = 1.0) -> PaddedDocuments:
        """Decode documents into rectangles, padded on the right to the longest of them and to the widest row.

        Raises:
            IndexError: outside [0, len).
            CacheError: a payload cannot be read, or the temperature was not captured.
        """
        if temperature != 1.0 and temperature not in self.targets.other_temperatures:
            captured = ", ".join(f"{tau:g}" for tau in self.targets.all_temperatures)
            raise CacheError(
                f"{self.store}: temperature {temperature:g} was not captured, only {captured}; "
                f"train at one of them, or capture another cache with --set targets.temperatures=[1,{temperature:g}]"
            )
        lengths = self.input_tokens[list(indices)] if len(indices) else np.zeros(0, dtype=np.int32)
        batches = self._by_batch(indices)
        width = max((self._use(place, partial(self._width, rows)) for place, (_, rows) in batches.items()), default=1)
        padded = PaddedDocuments.empty(lengths, width, np.empty)
        for place, (positions, rows) in batches.items():
            self._use(place, partial(padded.fill, positions, self.codec, temperature, documents=rows))
        return padded

    def _by_batch(self, indices: Sequence[int]) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """For each record batch that has some of the documents: their positions in `indices`, and their rows."""
        batches: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        for position, index in enumerate(indices):
            place, row = self._place(index)
            positions, rows = batches.setdefault(place, ([], []))
            positions.append(position)
            rows.append(row)
        return batches

    def _width(self, rows: list[int], columns: Columns) -> int:
        counts, starts = self.codec.counts(columns), columns.flat("label_logprob")[1]
        return max(int(counts[starts[row] : starts[row + 1]].max(initial=0)) for row in rows)

    def _document(self, row: int, columns: Columns) -> CachedDocument:
        rows = read_rows(self.codec, columns, row)
        filled = np.arange(rows.ids.shape[1]) < rows.counts[:, None]
        sampled = self.targets.mode == "sampled"
        weights = rows.weights[filled]
        with np.errstate(divide="ignore"):
            tail = np.log(rows.tail_mass) if sampled else columns.part("tail_logprob", row).astype(np.float32)
            logprobs = np.log(weights)
        others = {tau: columns.part(tail_name(tau), row).astype(np.float32) for tau in self.targets.other_temperatures}
        return CachedDocument(
            token_ids=columns.part("token_ids", row),
            counts=rows.counts,
            tail_logprob=tail,
            label_logprob=columns.part("label_logprob", row).astype(np.float32),
            ids=rows.ids[filled],
            logprobs=logprobs,
            entropy=columns.part("entropy", row).astype(np.float32) if "entropy" in columns else None,
            other_tails=others,
        )

    def _place(self, index: int) -> tuple[tuple[int, int], int]:
        """The record batch (shard, number) of a document, and its row there."""
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} is outside 0..{len(self) - 1}")
        shard = int(np.searchsorted(self._shard_starts, index, side="right")) - 1
        row, ends = index - int(self._shard_starts[shard]), self._batch_ends.get(shard)
        batch = int(np.searchsorted(ends, row, side="right"))
        return (shard, batch), row - (int(ends[batch - 1]) if batch else 0)

    def _use(self, place: tuple[int, int], use: Callable[[Columns], Value]) -> Value:
        """Give `use` a record batch."""
        try:
            return use(self._batches.get(place))
        except (pa.ArrowInvalid, OSError, ValueError, KeyError) as error:
            self._refuse(self.record.shards[place[0]], f"cannot be read ({str(error).splitlines()[0]})")
            raise

    @cached_property
    def _shard_starts(self) -> np.ndarray:
        return np.cumsum([0] + [shard.documents for shard in self.record.shards[:-1]])

    def _open_payload(self, position: int) -> pa.Buffer:
        return map_payload(self.store, self.record.shards[position].payload)

    def _open_batch(self, place: tuple[int, int]) -> Columns:
        shard, number = place
        return read_batch(self._payloads.get(shard), self.record.shards[shard].batches[number], self.codec.schema)

    def _vocabulary(self) -> Vocabulary | None:
        if not needs_vocabulary(self.manifest.codec):
            return None
        return read_vocabulary(self.store, self.manifest)

    def _refuse(self, shard: ShardRecord, problem: str) -> None:
        raise CacheError(f"{self.store}: shard {shard.name}: {problem}; run 'pipeline cache repair --shard {self.store.name}'") from None


def map_payload(store: Store, payload: FileRecord) -> pa.Buffer:
    """A payload's file in memory. A staged copy may make room for another's between fetching and opening it: then it is fetched again.

    Raises:
        FileNotFoundError: it is not there.
        PipelineError: it is not what was written, or there is no room to stage it.
    """
    for _ in range(FETCHES):
        with suppress(FileNotFoundError):
            return _mapped(store.fetch(payload.name, payload.bytes, payload.xxh3_128))
    return _mapped(store.fetch(payload.name, payload.bytes, payload.xxh3_128))


def _mapped(path: Path) -> pa.Buffer:
    return pa.memory_map(str(path)).read_buffer()


def read_batch(payload: pa.Buffer, record: BatchRecord, schema: pa.Schema) -> Columns:
    """The columns of a record batch, once its bytes are what was written: nothing below here looks for damage.

    Raises:
        ValueError: they are not.
    """
    message = payload[record.start : record.end]
    if xxh3_64_hexdigest(message) != record.xxh3_64:
        raise ValueError(f"bytes {record.start} to {record.end} do not have the hash {record.xxh3_64} they were written with")
    return Columns(pa.ipc.read_record_batch(message, schema))


def read_vocabulary(store: Store, manifest: CacheManifest) -> Vocabulary:
    """The permutations of a cache.

    Raises:
        CacheError: the file is missing or is not the one the manifest names.
    """
    record = manifest.vocabulary
    assert record is not None
    problem = record.problem(store)
    if problem:
        raise CacheError(
            f"{store}/{record.name}: {problem}, and no shard can be read without it; run 'pipeline cache repair --shard {store.name}'"
        )
    return Vocabulary.from_bytes(store.read_bytes(record.name), f"{store}/{record.name}")
