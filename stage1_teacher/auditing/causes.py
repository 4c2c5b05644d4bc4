"""What probably happened to rows that are not the teacher's: faults that have a signature."""

from collections.abc import Sequence

import numpy as np

from pipeline.contract.logit_cache.schema import CachedDocument
from stage1_teacher.auditing.differences import best, match
from stage1_teacher.auditing.sides import View, certain

FITS = 0.9
"""A signature is believed when nine rows in ten, or nine tenths of the variance, bear it."""


def likely_cause(live: Sequence[CachedDocument], cached: Sequence[CachedDocument]) -> str | None:
    """One clause on the same documents from both sides, None where no signature fits."""
    views = [(entries(ours), entries(theirs)) for ours, theirs in zip(live, cached, strict=True)]
    return _shift(views) or _other_tail(live, cached) or _temperature(views)


def entries(document: CachedDocument) -> View:
    """As they are, drawn ones left out."""
    row_of = np.repeat(np.arange(document.tokens), document.counts)
    view = View(row_of, document.ids.astype(np.int64), np.exp(document.logprobs.astype(np.float64)), np.zeros(document.tokens))
    return view.part(certain(document))


def _shift(views: Sequence[tuple[View, View]]) -> str | None:
    for step, which in ((1, "after"), (-1, "before")):
        if _agreement(views, step) > FITS > _agreement(views, 0):
            return f"its rows are the live ones of the token {which}: shifted by one"
    return None


def _agreement(views: Sequence[tuple[View, View]], step: int) -> float:
    """Share of cached rows whose best entry is that of the live row `step` further on."""
    same: list[np.ndarray] = []
    for live, cached in views:
        ours, theirs = (np.append(view.ids, -1)[best(view)] for view in (live, cached))
        same.append((np.roll(ours, -step) == theirs)[max(0, -step) : len(ours) - max(0, step)])
    flat = np.concatenate(same)
    return float(flat.mean()) if len(flat) else 0.0


def _other_tail(live: Sequence[CachedDocument], cached: Sequence[CachedDocument]) -> str | None:
    """A tail that is the live one of another captured temperature."""
    temperatures = [1.0, *live[0].other_tails] if cached[0].other_tails else []
    for stored in temperatures:
        apart = {tau: _tail_distance(live, cached, tau, stored) for tau in temperatures}
        nearest = min(apart, key=apart.__getitem__)
        if apart[nearest] < (1 - FITS) * apart[stored]:
            return f"its tail at temperature {stored:g} is the live one at {nearest:g}"
    return None


def _tail_distance(live: Sequence[CachedDocument], cached: Sequence[CachedDocument], tau: float, stored: float) -> float:
    """Median |difference| of the cached tail at `stored` from the live one at `tau`, nats."""
    pairs = [(_tail(ours, tau), _tail(theirs, stored)) for ours, theirs in zip(live, cached, strict=True)]
    return float(np.median(np.concatenate([np.abs(ours - theirs) for ours, theirs in pairs])))


def _tail(document: CachedDocument, tau: float) -> np.ndarray:
    return document.tail_logprob if tau == 1.0 else document.other_tails[tau]


def _temperature(views: Sequence[tuple[View, View]]) -> str | None:
    """Logprobs that are, row by row, a straight line of the live ones: log q / tau and a constant."""
    ours, theirs = (np.concatenate(part) for part in zip(*(_centred(live, cached) for live, cached in views), strict=True))
    square, cross, their_square = ours @ ours, ours @ theirs, theirs @ theirs
    if not square or not their_square or cross**2 / (square * their_square) < FITS:
        return None
    tau = square / cross
    return None if abs(tau - 1) < 1 - FITS else f"its values are those of temperature {tau:.2g}"


def _centred(live: View, cached: View) -> tuple[np.ndarray, np.ndarray]:
    """[M] logprobs of the common entries on both sides, less each row's mean."""
    here, there = match(live, cached)
    rows = live.row_of[here]
    counts = np.maximum(np.bincount(rows, minlength=live.rows), 1)
    logs = [np.log(np.maximum(view.mass[places], 1e-30)) for view, places in ((live, here), (cached, there))]
    ours, theirs = (values - (np.bincount(rows, weights=values, minlength=live.rows) / counts)[rows] for values in logs)
    return ours, theirs
