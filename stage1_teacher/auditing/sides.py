"""A document's rows from four sides, in one form: scored live, live once more, coded and restored, and read from the cache."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.contract.logit_cache.codec import Codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.masses import at_temperature
from pipeline.contract.logit_cache.padded import Rows, read_rows
from pipeline.contract.logit_cache.reader import LogitCache
from pipeline.contract.logit_cache.schema import CachedDocument


@dataclass(frozen=True)
class View:
    """The entries of R rows at one temperature, N in all, row after row.

    Attributes:
        row_of: [N] int64, the row of each entry.
        ids: [N] int64.
        mass: [N] float64, probabilities, or weights of a sample.
        tail: [R] float64, the mass outside; 0 for a sample, whose entries stand for it too.
    """

    row_of: np.ndarray
    ids: np.ndarray
    mass: np.ndarray
    tail: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.tail)

    @property
    def keys(self) -> np.ndarray:
        """[N] int64, one number for row and id."""
        return (self.row_of << 32) | self.ids

    def part(self, wanted: np.ndarray) -> "View":
        """Some of the entries; `wanted` [N] bool."""
        return View(self.row_of[wanted], self.ids[wanted], self.mass[wanted], self.tail)

    def sums(self, values: np.ndarray) -> np.ndarray:
        """[R] sums of a value an entry, [N]."""
        return np.bincount(self.row_of, weights=values, minlength=self.rows)


@dataclass(frozen=True)
class Side:
    """One document from one side: `views` by temperature, `label` [R] logprobs, `entropy` [R] nats where it is known."""

    label: np.ndarray
    entropy: np.ndarray | None
    views: dict[float, View]


def scored_side(document: CachedDocument, temperatures: Sequence[float]) -> Side:
    """As an engine scored it."""
    return Side(document.label_logprob, document.entropy, {tau: _scored_view(document, tau) for tau in temperatures})


def coded_side(codec: Codec, document: CachedDocument, temperatures: Sequence[float]) -> Side:
    """As a cache of this codec would give it back."""
    columns = Columns(codec.encode([document], 0))
    entropy = columns.part("entropy", 0) if "entropy" in columns else None
    return Side(columns.part("label_logprob", 0), entropy, {tau: _view(read_rows(codec, columns, 0, tau)) for tau in temperatures})


def cached_side(cache: LogitCache, index: int, temperatures: Sequence[float]) -> Side:
    """As the cache gives it back.

    Raises:
        CacheError: the payload cannot be read.
    """
    document = cache[index]
    return Side(document.label_logprob, document.entropy, {tau: _view(_cached_rows(cache, index, tau)) for tau in temperatures})


def certain(document: CachedDocument) -> np.ndarray:
    """[N] bool, the entries of a scored document that are kept for certain: all but the last, drawn ones of a sample's rows."""
    counts = document.counts.astype(np.int64)
    drawn = np.zeros_like(counts) if document.drawn is None else document.drawn.astype(np.int64)
    place = np.arange(len(document.ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return place < np.repeat(counts - drawn, counts)


def _scored_view(document: CachedDocument, temperature: float) -> View:
    row_of = np.repeat(np.arange(document.tokens), document.counts)
    there = at_temperature(document, temperature)
    tail = np.zeros(document.tokens) if document.drawn is not None else np.exp(there.tail_logprob.astype(np.float64))
    return View(row_of, document.ids.astype(np.int64), np.exp(there.logprobs.astype(np.float64)), tail)


def _view(rows: Rows) -> View:
    filled = np.arange(rows.ids.shape[1]) < rows.counts[:, None]
    row_of, _ = np.nonzero(filled)
    return View(row_of, rows.ids[filled].astype(np.int64), rows.weights[filled].astype(np.float64), rows.tail_mass.astype(np.float64))


def _cached_rows(cache: LogitCache, index: int, temperature: float) -> Rows:
    padded = cache.padded([index], temperature)
    rows = slice(int(padded.lengths[0]) - 1)
    return Rows(padded.counts[0, rows], padded.ids[0, rows], padded.weights[0, rows], padded.tail_mass[0, rows])
