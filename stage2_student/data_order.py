"""Which document comes when: defined once, a function of (seed, pass, place), the same for every placement and world size.

Shards are permuted, then documents inside a window of shards, so that a remote cache is read in large pieces.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

SHARDS_PER_WINDOW = 8


class DocumentOrder:
    """An endless stream of documents over passes through the first `documents` of a split."""

    def __init__(self, shard_sizes: Sequence[int], documents: int, seed: int, order: Literal["fixed", "reshuffle"]) -> None:
        self.documents, self._seed, self._reshuffle = documents, seed, order == "reshuffle"
        starts = np.cumsum([0, *shard_sizes])
        self._shards = [
            np.arange(start, min(start + size, documents)) for start, size in zip(starts, shard_sizes, strict=False) if start < documents
        ]
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def at(self, position: int, count: int) -> np.ndarray:
        """[count] indices of the documents from `position` of the stream on; a pass follows a pass without a gap."""
        parts = []
        while count > 0:
            number, offset = divmod(position, self.documents)
            parts.append(self._permutation(number if self._reshuffle else 0)[offset : offset + count])
            position, count = position + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def drawn(self, position: int, count: int) -> np.ndarray:
        """The distinct documents among those that `at` gives, sorted; two passes hold them all."""
        return np.unique(self.at(position, min(count, 2 * self.documents)))

    def _permute(self, number: int) -> np.ndarray:
        random = np.random.Generator(np.random.PCG64([self._seed, number]))
        shards = [self._shards[index] for index in random.permutation(len(self._shards))]
        windows = [np.concatenate(shards[start : start + SHARDS_PER_WINDOW]) for start in range(0, len(shards), SHARDS_PER_WINDOW)]
        return np.concatenate([random.permutation(window) for window in windows])
