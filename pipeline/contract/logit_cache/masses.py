"""A row's mass: what its entries have to sum to, and the factor that makes them."""

import numpy as np

from pipeline.contract.logit_cache.schema import CachedDocument


def kept_mass(tail_logprob: np.ndarray) -> np.ndarray:
    """1 - exp(tail_logprob) without cancellation, float64.

    A tail that rounds to mass 1 in float32 leaves the kept entries the smallest mass that float32 tells from 1.
    """
    return np.maximum(-np.expm1(tail_logprob.astype(np.float64)), np.finfo(np.float32).epsneg)


def tails_with_dropped(document: CachedDocument, kept: np.ndarray) -> dict[float, np.ndarray]:
    """The tail's logprob [T-1] at each temperature, with the mass of the entries that are not `kept` [N] added to it."""
    tails = {1.0: document.tail_logprob, **document.other_tails}
    if kept.all():
        return tails
    row_of = np.repeat(np.arange(document.tokens), document.counts)
    return {tau: _with_dropped(tail, np.exp(document.logprobs.astype(np.float64) / tau), row_of, kept) for tau, tail in tails.items()}


def _with_dropped(tail_logprob: np.ndarray, values: np.ndarray, row_of: np.ndarray, kept: np.ndarray) -> np.ndarray:
    everything = np.bincount(row_of, weights=values, minlength=len(tail_logprob))
    dropped = np.bincount(row_of[~kept], weights=values[~kept], minlength=len(tail_logprob))
    tail = np.exp(tail_logprob.astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        more = np.where(dropped > 0, (1 - tail) * dropped / everything, 0.0)
        return np.where(dropped > 0, np.log(tail + more), tail_logprob)
