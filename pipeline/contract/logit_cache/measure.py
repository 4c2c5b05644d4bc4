"""A document's rows as they were scored against what the cache gives back: the errors that `fidelity` adds up."""

import numba
import numpy as np

from pipeline.contract.logit_cache.fidelity import Measured
from pipeline.contract.logit_cache.padded import Rows
from pipeline.contract.logit_cache.schema import CachedDocument


def measure(exact: CachedDocument, rows: Rows, sample_c: float | None) -> Measured:
    """One document's rows as scored against what the cache gives back; `sample_c` is c of a sample."""
    none = np.zeros(exact.tokens)
    entropy = none if exact.entropy is None else exact.entropy
    mass_kept = 1.0 - np.exp(exact.tail_logprob, dtype=np.float64)
    if sample_c is None:
        return Measured(entropy, mass_kept, row_kl(exact, rows.ids, rows.weights, rows.tail_mass), none, none, none, none)
    return Measured(entropy, mass_kept, *sample_errors(exact, rows.ids, rows.weights, sample_c))


def row_kl(exact: CachedDocument, ids: np.ndarray, weights: np.ndarray, tail_mass: np.ndarray) -> np.ndarray:
    """[R] KL(exact || restored), for restored entries [R, K] (weight 0 in free slots) and tail [R].

    An entry that the codec dropped is part of the tail on both sides. Scores are float32 and sum to 1 within 1e-6; the form
    sum of p log(p / w) - p + w makes nothing of that: it is 0 for equal rows and below 0 by no more than rounding in float64.
    """
    tail = np.exp(exact.tail_logprob.astype(np.float64))
    q = np.exp(exact.logprobs.astype(np.float64))
    return _row_kl(exact.ids, q, exact.counts, tail, ids, weights.astype(np.float64), tail_mass.astype(np.float64))


def sample_errors(exact: CachedDocument, ids: np.ndarray, weights: np.ndarray, c: float) -> tuple[np.ndarray, ...]:
    """Of a sample's rows: squared error, the same expected before coding, sum of q^2, certain mass before and after coding."""
    assert exact.drawn is not None and exact.tail_square is not None
    q = np.exp(exact.logprobs.astype(np.float64))
    certain = exact.counts - exact.drawn
    added, square, mass, restored = _sample_errors(exact.ids, q, exact.counts, certain, ids, weights.astype(np.float64))
    plain = np.maximum(c * np.exp(exact.tail_logprob.astype(np.float64)) - exact.tail_square, 0)
    return plain + added, plain, square + exact.tail_square, mass, restored


@numba.njit(cache=True)
def _row_kl(exact_ids, q, counts, tail, ids, weights, tail_mass):
    kl = np.zeros(len(counts))
    start = np.int64(0)
    for row in range(len(counts)):
        count = np.int64(counts[row])
        here = np.argsort(exact_ids[start : start + count])
        there = np.argsort(ids[row])
        rest, j = tail[row], 0
        for i in range(count):
            p, token = q[start + here[i]], exact_ids[start + here[i]]
            while j < len(there) and (ids[row, there[j]] < token or weights[row, there[j]] == 0):
                j += 1
            if j < len(there) and ids[row, there[j]] == token:
                weight = weights[row, there[j]]
                kl[row] += p * np.log(p / weight) - p + weight
                j += 1
            else:
                rest += p
        kl[row] += tail_mass[row] - rest
        if rest > 0 and tail_mass[row] > 0:
            kl[row] += rest * np.log(rest / tail_mass[row])
        start += count
    return kl


@numba.njit(cache=True)
def _sample_errors(exact_ids, q, counts, certain, ids, weights):
    rows = len(counts)
    added, square, mass, restored = np.zeros(rows), np.zeros(rows), np.zeros(rows), np.zeros(rows)
    start = np.int64(0)
    for row in range(rows):
        order = np.argsort(ids[row])
        sorted_ids = ids[row][order]
        for i in range(start, start + np.int64(certain[row])):
            weight = 0.0
            j = np.searchsorted(sorted_ids, exact_ids[i])
            while j < len(order) and sorted_ids[j] == exact_ids[i]:
                weight = max(weight, weights[row, order[j]])
                j += 1
            added[row] += (weight - q[i]) ** 2
            square[row] += q[i] ** 2
            mass[row] += q[i]
            restored[row] += weight
        start += np.int64(counts[row])
    return added, square, mass, restored
