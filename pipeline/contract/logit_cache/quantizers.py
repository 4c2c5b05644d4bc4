"""A kept probability as one byte.

    SquareRoot   round(255 sqrt(q)): uniform in Hellinger distance, the right spacing for KL; smallest q 3.8e-6
    LogDomain    round(-16 ln q): keeps small q, which count at temperatures above 1; smallest q 1.2e-7
    Multiples    q / c rounded up or down at random so that a row's weights are whole multiples of c that sum to 1

An entry too small for its quantiser has no code; its mass joins the tail.
"""

from typing import Protocol

import numpy as np

from pipeline.contract.logit_cache.draws import DRAW_BITS, Purpose, mix, row_draws, row_seeds
from pipeline.contract.logit_cache.schema import CachedDocument

NONE = -1
LOG_STEPS = 16


class Quantizer(Protocol):
    """Codes are 0 .. 255, NONE for an entry that has none."""

    def encode(self, logprobs: np.ndarray) -> np.ndarray:
        """[N] float32 to [N] int16."""
        ...

    def values(self, temperature: float) -> np.ndarray:
        """[256] float32: the probability, up to the row's common factor, that each code stands for at a temperature."""
        ...


class SquareRoot:
    """For temperature 1."""

    def encode(self, logprobs: np.ndarray) -> np.ndarray:
        scaled = np.exp(logprobs / 2)
        np.rint(np.multiply(scaled, 255, out=scaled), out=scaled)
        codes = np.minimum(scaled, 255, out=scaled).astype(np.int16)
        return np.add(codes, NONE, out=codes, where=codes == 0)

    def values(self, temperature: float) -> np.ndarray:
        assert temperature == 1.0
        return ((np.arange(256) / 255.0) ** 2).astype(np.float32)


class LogDomain:
    """For several temperatures: the error is the same 1/32 nat at every size."""

    def encode(self, logprobs: np.ndarray) -> np.ndarray:
        codes = np.rint(-LOG_STEPS * logprobs.astype(np.float64)).clip(0, 256)
        return np.where(codes < 256, codes, NONE).astype(np.int16)

    def values(self, temperature: float) -> np.ndarray:
        return np.exp(-np.arange(256) / (LOG_STEPS * temperature)).astype(np.float32)


def round_square_root(document: CachedDocument) -> np.ndarray:
    """[N] int16, 0 for a sample's drawn entries, else a square-root code rounded at random so that code^2 / 255^2 is q on average.

    Rounding to the nearest would move an entry by up to 4.3%, every time the same way.
    """
    assert document.drawn is not None
    counts = document.counts.astype(np.int64)
    places = _places(counts)
    seeds = np.repeat(row_seeds(document.token_ids, Purpose.ROUND), counts)
    uniform = (mix(seeds + places.astype(np.uint64)) >> np.uint64(11)) * 2.0**-53
    scaled = np.exp(document.logprobs.astype(np.float64)) * 255**2
    low = np.floor(np.sqrt(scaled)).clip(1, 254)
    codes = low + (uniform < (scaled - low**2) / (2 * low + 1))
    return np.where(places < np.repeat(counts - document.drawn, counts), codes, 0).astype(np.int16)


def round_multiples(document: CachedDocument, c: float) -> np.ndarray:
    """[N] int16, the weights of a sample's entries as whole multiples of c that sum to 1/c in every row; 0 for an entry left out.

    A row is a line of length 1/c with a point every 1: the drawn entries are the points on the tail's part of it, and the
    multiple of a certain entry, q / c long, is the number of points on it. That is q / c rounded, right on average.
    """
    assert document.drawn is not None
    counts, drawn, slots = document.counts.astype(np.int64), document.drawn.astype(np.int64), round(1 / c)
    is_certain = _places(counts) < np.repeat(counts - drawn, counts)
    lengths = np.where(is_certain, np.exp(document.logprobs.astype(np.float64)) * slots, 0.0)
    tail = slots - _row_sums(lengths, counts)
    offset = row_draws(document.token_ids) * 2.0**-DRAW_BITS + drawn - tail  # of the first point beyond the tail
    points = np.ceil(_running(lengths, counts) - np.repeat(offset, counts))
    points = np.clip(points, 0, np.repeat(slots - drawn, counts)).astype(np.int64)
    multiples = np.where(is_certain, np.diff(points, prepend=0), 1)
    firsts = (np.cumsum(counts) - counts)[counts > 0]
    multiples[firsts] = np.where(is_certain[firsts], points[firsts], 1)
    multiples[firsts] += (slots - _row_sums(multiples, counts))[counts > 0]  # what rounding of the sums took
    return multiples.astype(np.int16)


def _running(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """[N] sums from the start of each entry's row up to the entry, with it."""
    running = np.cumsum(values)
    before = np.concatenate([[0.0], running])[np.cumsum(counts) - counts]
    return running - np.repeat(before, counts)


def _row_sums(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    sums = np.concatenate([[0], np.cumsum(values)])
    return np.diff(sums[np.concatenate([[0], np.cumsum(counts)])])


def _places(counts: np.ndarray) -> np.ndarray:
    """[N] the place of each entry in its row."""
    counts = counts.astype(np.int64)
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
