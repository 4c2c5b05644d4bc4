"""Read a cache by document, in any order, with bounded memory: a few open shards, a few decompressed batches."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.codec import decode
from pipeline.contract.logit_cache.index import CacheManifest, ShardRecord, Split, SplitRecord, read_manifest, shard_name
from pipeline.contract.logit_cache.schema import CachedDocument

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


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
    """One split of a cache: `len(cache)` documents, `cache[i]` decoded.

    Example:
        cache = LogitCache.open("artifacts/caches/installed-docs", split="train")
        document = cache[42]
    """

    folder: Path
    manifest: CacheManifest
    split: Split
    _files: Recent[int, pa.RecordBatchFileReader] = field(init=False, repr=False)
    _batches: Recent[tuple[int, int], pa.RecordBatch] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = Recent(16, self._open_shard)
        self._batches = Recent(8, lambda place: self._files.get(place[0]).get_batch(place[1]))

    @classmethod
    def open(cls, folder: str | Path, split: Split = "train") -> "LogitCache":
        """Open a finished cache.

        Raises:
            CacheError: no cache there, the split was not captured, or a payload is missing or of another size.
        """
        folder = Path(folder)
        manifest = read_manifest(folder)
        if split not in manifest.splits:
            raise CacheError(
                f"{folder}: split {split!r} is not captured; run 'pipeline cache-teacher --shard {folder.name} --split {split}'"
            )
        cache = cls(folder, manifest, split)
        for shard in cache.record.shards:
            cache._refuse(shard, shard.payload.problem(folder / "shards", deep=False))
        return cache

    def _refuse(self, shard: ShardRecord, problem: str | None) -> None:
        if problem:
            raise CacheError(
                f"{self.folder}: shard {shard_name(shard.split, shard.index)}: {problem}; "
                f"run 'pipeline cache-teacher --shard {self.folder.name}', which redoes that shard and no other"
            )

    @property
    def record(self) -> SplitRecord:
        return self.manifest.splits[self.split]

    def __len__(self) -> int:
        return self.record.documents

    def __getitem__(self, index: int) -> CachedDocument:
        """Decode document `index`.

        Raises:
            IndexError: outside [0, len).
            CacheError: the payload cannot be read.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"document {index} is outside 0..{len(self) - 1}")
        shard = int(np.searchsorted(self._shard_starts, index, side="right")) - 1
        batch, row = self._place(shard, index - int(self._shard_starts[shard]))
        try:
            return decode(self._batches.get((shard, batch)), row)
        except (pa.ArrowInvalid, OSError) as error:
            self._refuse(self.record.shards[shard], f"cannot be read ({str(error).splitlines()[0]})")
            raise

    def _place(self, shard: int, row: int) -> tuple[int, int]:
        """Record batch of a shard's row, and the row inside it."""
        ends = np.cumsum(self.record.shards[shard].batch_rows)
        batch = int(np.searchsorted(ends, row, side="right"))
        return batch, row - (int(ends[batch - 1]) if batch else 0)

    @cached_property
    def _shard_starts(self) -> np.ndarray:
        return np.cumsum([0] + [shard.documents for shard in self.record.shards[:-1]])

    def _open_shard(self, position: int, fields: list[int] | None = None) -> pa.RecordBatchFileReader:
        shard = self.record.shards[position]
        try:
            source = pa.memory_map(str(self.folder / "shards" / shard.payload.name))
            return pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields))
        except (pa.ArrowInvalid, OSError) as error:
            self._refuse(shard, f"cannot be opened ({str(error).splitlines()[0]})")
            raise

    @cached_property
    def input_tokens(self) -> np.ndarray:
        """[documents] int32, T of every document, without decoding any."""
        column = 1
        parts = [self._open_shard(position, [column]).read_all()["input_tokens"].to_numpy() for position in range(len(self.record.shards))]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
