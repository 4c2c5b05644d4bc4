"""`vocabulary.arrow`: ids renamed by how often a teacher keeps them, so that the ids of a row are small numbers close together.

Ranks 0 .. H-1 of a cluster are its head: the H ids that rows of this cluster keep most. Rank H + b is id `order[b]`, whatever
the cluster: `order` has every id, so that a head may leave any out. A cache without clusters has no heads, and H = 0.
"""

from dataclasses import dataclass
from functools import cached_property
from io import BytesIO

import numpy as np
import pyarrow as pa

from pipeline.contract.errors import CacheError

COST_UNIT = 8  # a cost of 8 is one bit

_IDS = pa.large_list(pa.int32())
_SCHEMA = pa.schema([("order", _IDS), ("heads", _IDS), ("clusters", pa.int64())])


@dataclass(frozen=True)
class Vocabulary:
    """The permutation of a cache, and its clusters' heads.

    Attributes:
        order: [V] int32, every id once, the most frequent first.
        heads: [C, H] int32, each row without repetition; [1, 0] without clusters.
    """

    order: np.ndarray
    heads: np.ndarray

    @classmethod
    def by_frequency(cls, counts: np.ndarray) -> "Vocabulary":
        """Order ids by falling `counts` [V], ties by id; no clusters."""
        return cls(np.argsort(-counts, kind="stable").astype(np.int32), np.zeros((1, 0), dtype=np.int32))

    @property
    def size(self) -> int:
        return len(self.order)

    @property
    def clusters(self) -> int:
        return len(self.heads)

    @cached_property
    def ranks(self) -> np.ndarray:
        """[V, C] int32, the rank of each id in each cluster: what an encoder needs, and no reader."""
        head = self.heads.shape[1]
        base = np.empty(self.size, dtype=np.int32)
        base[self.order] = np.arange(head, head + self.size, dtype=np.int32)
        ranks = np.repeat(base[:, None], self.clusters, axis=1)
        for cluster, ids in enumerate(self.heads):
            ranks[ids, cluster] = np.arange(head)
        return ranks

    @cached_property
    def costs(self) -> np.ndarray:
        """[V, C] uint8, about what an id costs in each cluster, in eighths of a bit: log2 of its rank."""
        return np.minimum(np.log2(self.ranks + 1.0) * COST_UNIT, 255).astype(np.uint8)

    def to_bytes(self) -> bytes:
        """The file's content: two columns of one row, equal bytes for equal permutations."""
        table = pa.table({"order": [self.order], "heads": [self.heads.ravel()], "clusters": [self.clusters]}, schema=_SCHEMA)
        sink = BytesIO()
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
            writer.write_table(table)
        return sink.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> "Vocabulary":
        """Read the file's content.

        Raises:
            CacheError: it is not a vocabulary: `order` is no permutation, or a head names an id outside of it or twice.
        """
        try:
            table = pa.ipc.open_file(data).read_all()
            if table.schema != _SCHEMA or table.num_rows != 1 or any(column.null_count for column in table.columns):
                raise ValueError("it is of another form")
            order, heads = (table[name].combine_chunks().values.to_numpy() for name in ("order", "heads"))
            heads = heads.reshape(table["clusters"][0].as_py(), -1)
            if not np.array_equal(np.sort(order), np.arange(len(order))) or not _different_ids(heads, len(order)):
                raise ValueError("it holds no permutation")
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            line = str(error).splitlines()[0]
            raise CacheError(f"{source}: cannot be read ({line}), and no shard can without it; run 'pipeline cache repair'") from None
        return cls(order, heads)


def _different_ids(heads: np.ndarray, size: int) -> bool:
    """Whether each row [H] is of different ids below `size`."""
    rising = np.sort(heads, axis=1)
    return bool(((rising >= 0) & (rising < size)).all() and (np.diff(rising, axis=1) > 0).all())
