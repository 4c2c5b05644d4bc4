"""Random numbers that belong to a document: a function of its token ids, a position and a purpose, and of nothing else.

So a shard that is done again, by another worker, in other batches, draws the same. The generator is SplitMix64
(Steele, Lea, Flood 2014) on the document's xxh3-64, in integers: equal on every machine.
"""

from enum import IntEnum

import numpy as np
import xxhash

DRAW_BITS = 40
"""Draws and the cumulative sums they are compared with are int64 fixed point of 2^-40."""

_GOLDEN, _FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Purpose(IntEnum):
    """What a row's draw decides; different purposes are independent."""

    SAMPLE = 0
    ROUND = 1


def row_seeds(token_ids: np.ndarray, purpose: Purpose) -> np.ndarray:
    """[T-1] uint64, a seed for each row of a document of token ids [T]."""
    document = np.uint64(xxhash.xxh3_64_intdigest(np.ascontiguousarray(token_ids, dtype="<i4").data, seed=int(purpose)))
    place = np.arange(1, len(token_ids), dtype=np.uint64)
    return mix(document + place * _GOLDEN)


def row_draws(token_ids: np.ndarray, purpose: Purpose = Purpose.SAMPLE) -> np.ndarray:
    """[T-1] int64, uniform on 0 .. 2^40 - 1."""
    return (row_seeds(token_ids, purpose) >> np.uint64(64 - DRAW_BITS)).astype(np.int64)


def mix(z: np.ndarray) -> np.ndarray:
    """SplitMix64's output function on uint64."""
    z = (z ^ (z >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))
