"""A row's mass: what its entries have to sum to, and the factor that makes them."""

from dataclasses import replace

import numpy as np

from pipeline.contract.logit_cache.schema import CachedDocument

SMALLEST_MASS = float(np.finfo(np.float32).epsneg)
"""What float32 tells from 0 beside a tail of mass 1."""


def kept_mass(tail_logprob: np.ndarray) -> np.ndarray:
    """1 - exp(tail_logprob) without cancellation, float64.

    A tail that rounds to mass 1 in float32 leaves the kept entries the smallest mass that float32 tells from 1.
    """
    return np.maximum(-np.expm1(tail_logprob.astype(np.float64)), SMALLEST_MASS)


def at_temperature(document: CachedDocument, tau: float) -> CachedDocument:
    """A document as scored, its entries and tail those of a captured temperature: entries sum to 1 less the tail."""
    if tau == 1.0:
        return document
    tail = document.other_tails[tau]
    with np.errstate(divide="ignore"):  # an id that the teacher masks may be among the kept
        logprobs = np.log(_masses(document, tau, tail, slice(None)))
    return replace(document, logprobs=logprobs, tail_logprob=tail)


def tails_with_dropped(document: CachedDocument, kept: np.ndarray) -> dict[float, np.ndarray]:
    """The tail's logprob [T-1] at each temperature, with the mass of the entries that are not `kept` [N] added to it."""
    tails = {1.0: document.tail_logprob, **document.other_tails}
    dropped = np.flatnonzero(~kept)
    if len(dropped) == 0:
        return tails
    rows = np.searchsorted(np.cumsum(document.counts, dtype=np.int64), dropped, side="right")
    return {tau: _add(tail, rows, _masses(document, tau, tail, dropped)) for tau, tail in tails.items()}


def _masses(document: CachedDocument, tau: float, tail_logprob: np.ndarray, wanted: np.ndarray | slice) -> np.ndarray:
    """What entries weigh at a temperature; logprobs are of temperature 1, where they need no factor."""
    if tau == 1.0:
        return np.exp(document.logprobs[wanted].astype(np.float64))
    row_of = np.repeat(np.arange(document.tokens), document.counts)
    values = np.exp(document.logprobs.astype(np.float64) / tau)
    factor = kept_mass(tail_logprob) / np.maximum(np.bincount(row_of, weights=values, minlength=len(tail_logprob)), 1e-300)
    return values[wanted] * factor[row_of[wanted]]


def _add(tail_logprob: np.ndarray, rows: np.ndarray, masses: np.ndarray) -> np.ndarray:
    more = np.bincount(rows, weights=masses, minlength=len(tail_logprob))
    with np.errstate(divide="ignore"):
        return np.where(more > 0, np.log(np.exp(tail_logprob.astype(np.float64)) + more), tail_logprob)
