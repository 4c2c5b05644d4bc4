"""Rows as rectangles: what a loss takes, filled by the codec in one pass, with no object a token."""

from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from pipeline.contract.logit_cache.codec import Codec
from pipeline.contract.logit_cache.columns import Columns, tail_name


@dataclass(frozen=True)
class Rows:
    """A document's T-1 rows of K slots.

    Attributes:
        counts: [T-1] uint8; the first counts[t] slots of row t are filled, the others hold id 0 and weight 0.
        ids: [T-1, K] int32.
        weights: [T-1, K] float32, probabilities at the temperature, or sampling weights.
        tail_mass: [T-1] float32 at the temperature; 0 for a sample.
    """

    counts: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    tail_mass: np.ndarray


def read_rows(codec: Codec, columns: Columns, row: int, temperature: float = 1.0) -> Rows:
    """The document in `row` of a batch."""
    counts = codec.counts(columns, row)
    shape = (len(counts), int(counts.max(initial=0)))
    ids, weights = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
    codec.fill(columns, row, temperature, ids, weights)
    _clear_free(counts, ids, weights)
    return Rows(counts, ids, weights, tail_mass(codec, columns, row, temperature))


def tail_mass(codec: Codec, columns: Columns, row: int, temperature: float) -> np.ndarray:
    """[T-1] float32, the mass that the entries leave."""
    if codec.targets.mode == "sampled":
        return np.zeros(len(columns.part("label_logprob", row)), dtype=np.float32)
    return np.exp(columns.part(tail_name(temperature), row).astype(np.float32))


@dataclass(frozen=True)
class PaddedDocuments:
    """B documents padded on the right to T positions of K slots; what is free is 0. A document's last position has no row.

    Attributes:
        lengths: [B] int32, T of each document.
        token_ids: [B, T] int32.
        counts: [B, T] uint8, filled slots of a row; 0 where there is none.
        ids: [B, T, K] int32.
        weights: [B, T, K] float32.
        tail_mass: [B, T] float32.
        label_logprob: [B, T] float32.
    """

    lengths: np.ndarray
    token_ids: np.ndarray
    counts: np.ndarray
    ids: np.ndarray
    weights: np.ndarray
    tail_mass: np.ndarray
    label_logprob: np.ndarray

    @classmethod
    def empty(cls, lengths: np.ndarray, width: int, entries: Callable[..., np.ndarray] = np.zeros) -> "PaddedDocuments":
        """Room for documents of these lengths, of rows of `width` slots; `entries` np.empty where every document will be filled in."""
        rows = (len(lengths), int(lengths.max(initial=2)))
        return cls(
            lengths=lengths,
            token_ids=np.zeros(rows, dtype=np.int32),
            counts=np.zeros(rows, dtype=np.uint8),
            ids=entries((*rows, width), dtype=np.int32),
            weights=entries((*rows, width), dtype=np.float32),
            tail_mass=np.zeros(rows, dtype=np.float32),
            label_logprob=np.zeros(rows, dtype=np.float32),
        )

    def fill(self, place: int, codec: Codec, temperature: float, columns: Columns, row: int) -> None:
        """Put the document in `row` of a batch at `place`."""
        rows = slice(int(self.lengths[place]) - 1)
        self.token_ids[place, : self.lengths[place]] = columns.part("token_ids", row)
        self.counts[place, rows] = codec.counts(columns, row)
        codec.fill(columns, row, temperature, self.ids[place, rows], self.weights[place, rows])
        _clear_free(self.counts[place], self.ids[place], self.weights[place])
        self.tail_mass[place, rows] = tail_mass(codec, columns, row, temperature)
        self.label_logprob[place, rows] = columns.part("label_logprob", row)


@numba.njit(cache=True)
def _clear_free(counts, ids, weights):
    """Zero the slots that no entry fills: less than zeroing all of them before."""
    for row in range(len(counts)):
        for j in range(np.int64(counts[row]), ids.shape[1]):
            ids[row, j] = 0
            weights[row, j] = 0
