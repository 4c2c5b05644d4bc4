"""Which document comes when: defined once, a function of (seed, pass, place), the same for every placement and world size.

Shards are permuted, then documents inside a window of shards, so that a remote cache is read in large pieces.
"""

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

SHARDS_PER_WINDOW = 8


LaterPass = Literal["fixed", "reshuffle", "fresh"]
"""A pass after the first: the first again, the same documents in another order, or the documents that follow them in the split."""


class DocumentOrder:
    """A stream of documents over passes through `documents` of a split; endless but for `fresh`, which ends with the split."""

    def __init__(self, shard_sizes: Sequence[int], documents: int, seed: int, later: LaterPass) -> None:
        self.documents, self._seed, self._later = documents, seed, later
        self._starts = np.cumsum([0, *shard_sizes])
        self._permutation = lru_cache(maxsize=2)(self._permute)

    def at(self, position: int, count: int) -> np.ndarray:
        """[count] indices of the documents from `position` of the stream on; a pass follows a pass without a gap."""
        parts = []
        while count > 0:
            number, offset = divmod(position, self.documents)
            parts.append(self._permutation(0 if self._later == "fixed" else number)[offset : offset + count])
            assert len(parts[-1]), "a fresh stream is at its end: check_documents refuses such a run"
            position, count = position + len(parts[-1]), count - len(parts[-1])
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)

    def drawn(self, position: int, count: int) -> np.ndarray:
        """The distinct documents among those that `at` gives, sorted; two passes hold them all, unless they are fresh."""
        return np.unique(self.at(position, count if self._later == "fresh" else min(count, 2 * self.documents)))

    def stretch(self, position: int, count: int) -> tuple[int | str, ...]:
        """What `at(position, count)` depends on: equal stretches of one split and seed are the same documents in the same order."""
        if self._later == "fixed":
            return (self.documents, "fixed", position % self.documents, count)
        if position + count <= self.documents:
            return (self.documents, "fixed", position, count)
        ends = int(self._starts[-1]) if self._later == "fresh" else self.documents  # its last pass may be a short one
        return (self.documents, self._later, position, count, ends)

    def _permute(self, number: int) -> np.ndarray:
        random = np.random.Generator(np.random.PCG64([self._seed, number]))
        members = self._members(number)
        shards = [members[index] for index in random.permutation(len(members))]
        windows = [np.concatenate(shards[start : start + SHARDS_PER_WINDOW]) for start in range(0, len(shards), SHARDS_PER_WINDOW)]
        return np.concatenate([random.permutation(window) for window in windows])

    def _members(self, number: int) -> list[np.ndarray]:
        """The documents of a pass, by shard."""
        first = number * self.documents if self._later == "fresh" else 0
        spans = ((max(start, first), min(stop, first + self.documents)) for start, stop in pairwise(self._starts))
        return [np.arange(start, stop) for start, stop in spans if start < stop]
