"""Rows as rectangles: what a loss takes, filled by the codec in one pass, with no object a token."""

from collections.abc import Callable, Sequence
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


def read_rows(codec: Codec, columns: Columns, document: int, temperature: float = 1.0) -> Rows:
    """One document of a batch."""
    rows = columns.flat("label_logprob")[1]
    this = slice(rows[document], rows[document + 1])
    counts = codec.counts(columns)[this]
    shape = (1, len(counts), int(counts.max(initial=0)))
    ids, weights = np.empty(shape, dtype=np.int32), np.empty(shape, dtype=np.float32)
    here = np.array([0])
    codec.fill(columns, np.array([document]), temperature, ids, weights, here)
    _clear_free(counts[None], here, ids, weights)
    return Rows(counts, ids[0], weights[0], tail_mass(codec, columns, temperature)[this])


def tail_mass(codec: Codec, columns: Columns, temperature: float) -> np.ndarray:
    """[R] float32, the mass that the entries of each row of a batch leave."""
    if codec.targets.mode == "sampled":
        return np.zeros(len(columns.flat("label_logprob")[0]), dtype=np.float32)
    name = tail_name(temperature)
    return columns.made(("mass", name), lambda: np.exp(columns.flat(name)[0].astype(np.float32)))


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

    def fill(self, places: Sequence[int], codec: Codec, temperature: float, columns: Columns, documents: Sequence[int]) -> None:
        """Put `documents` of a batch at `places`: all of a batch in one call, which costs what one document's does."""
        where, of = np.array(places, dtype=np.int64), np.array(documents, dtype=np.int64)
        rows = columns.flat("label_logprob")[1]
        label = columns.made("label", lambda: columns.flat("label_logprob")[0].astype(np.float32))
        _scatter(*columns.flat("token_ids"), of, where, self.token_ids)
        _scatter(codec.counts(columns), rows, of, where, self.counts)
        _scatter(label, rows, of, where, self.label_logprob)
        _scatter(tail_mass(codec, columns, temperature), rows, of, where, self.tail_mass)
        codec.fill(columns, of, temperature, self.ids, self.weights, where)
        _clear_free(self.counts, where, self.ids, self.weights)


@numba.njit(cache=True)
def _scatter(values, starts, documents, places, out):
    for document, place in zip(documents, places):
        for i in range(starts[document], starts[document + 1]):
            out[place, i - starts[document]] = values[i]


@numba.njit(cache=True)
def _clear_free(counts, places, ids, weights):
    """Zero the slots that no entry fills, those of free positions too: less than zeroing all of them before."""
    for place in places:
        for t in range(ids.shape[1]):
            for j in range(np.int64(counts[place, t]), ids.shape[2]):
                ids[place, t, j] = 0
                weights[place, t, j] = 0
