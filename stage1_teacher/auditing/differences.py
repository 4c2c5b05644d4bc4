"""How far two sides of a document are apart, row by row."""

from collections.abc import Sequence

import numpy as np

from pipeline.contract.logit_cache.schema import CachedDocument
from stage1_teacher.auditing.sides import Side, View

TINY = 1e-300
LEAST = -65504.0  # float16's; a logprob below it is stored as that of probability 0

Differences = dict[str, np.ndarray]
"""By name, [R] each:

    label        |difference| of the label's logprob, nats
    kept         the largest |difference| of a kept entry's logprob, nats; of the entries that both sides kept
    top1         1 where both have the same most probable entry (entries that the codec made equal are the same), 0 where not,
                 NaN where one has none
    gap          where it is 0: by how many nats the live logprob of the live best exceeds that of the other's best
    kl T         KL(live || other) in nats at temperature T, the common ids and all the rest as one outcome
    entropy      |difference| of the teacher's entropy, nats, where both know it
    added, restored   of a sample: squared error of its certain entries, and what they weigh
"""


def differences(live: Side, other: Side, live_certain: np.ndarray, sampled: bool) -> Differences:
    """Of `other` from `live`; `live_certain` [N] marks the entries of the live side that are kept for certain."""
    ours, theirs = live.views[1.0], other.views[1.0]
    found = {"label": _apart(live.label, other.label), **_entries(ours.part(live_certain), theirs)}
    if live.entropy is not None and other.entropy is not None:
        found["entropy"] = _apart(live.entropy, other.entropy)
    if sampled:
        return found | _sample(ours.part(live_certain), theirs)
    return found | {f"kl {tau:g}": row_kl(view, other.views[tau]) for tau, view in live.views.items()}


def further(parts: Sequence[Differences]) -> Differences:
    """At every row the larger difference of several sides."""
    return {key: (np.fmin if key == "top1" else np.fmax).reduce([part[key] for part in parts]) for key in parts[0]}


def of_sample(document: CachedDocument, certain: View, c: float) -> Differences:
    """What a scored sample has to be held against: expected squared error of the draws, sum of q^2, mass of the certain entries."""
    assert document.tail_square is not None
    draws = np.maximum(c * np.exp(document.tail_logprob.astype(np.float64)) - document.tail_square, 0)
    return {"draws": draws, "square": certain.sums(certain.mass**2) + document.tail_square, "mass": certain.sums(certain.mass)}


def row_kl(live: View, other: View) -> np.ndarray:
    """[R] KL in nats of the distributions coarsened to the ids that both kept and one outcome for all else.

    As sum of p log(p / w) - p + w, which is never negative, and makes nothing of float32 sums that are not quite 1.
    """
    here, there = match(live, other)
    p, w = live.mass[here], np.maximum(other.mass[there], TINY)
    inside = np.bincount(live.row_of[here], weights=p * np.log(p / w) - p + w, minlength=live.rows)
    rest, their_rest = live.tail + _alone(live, here), np.maximum(other.tail + _alone(other, there), TINY)
    return inside + rest * np.log(np.maximum(rest, TINY) / their_rest) - rest + their_rest


def total_variation(one: View, other: View) -> np.ndarray:
    """[R] half the sum of |differences| of the entries' weights."""
    here, there = match(one, other)
    common = np.bincount(one.row_of[here], weights=np.abs(one.mass[here] - other.mass[there]), minlength=one.rows)
    return (common + _alone(one, here) + _alone(other, there)) / 2


def match(one: View, other: View) -> tuple[np.ndarray, np.ndarray]:
    """Places, in each of the two, of the entries that both have."""
    _, here, there = np.intersect1d(one.keys, other.keys, return_indices=True)
    return here, there


def best(view: View) -> np.ndarray:
    """[R] the place of each row's largest entry, the first of equals; -1 in a row that has none."""
    order = np.lexsort((-view.mass, view.row_of))
    rows, first = np.unique(view.row_of[order], return_index=True)
    places = np.full(view.rows, -1)
    places[rows] = order[first]
    return places


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.abs(np.maximum(one.astype(np.float64), LEAST) - np.maximum(other.astype(np.float64), LEAST))


def _alone(view: View, common: np.ndarray) -> np.ndarray:
    """[R] mass of the entries that are not at the places `common`."""
    alone = np.ones(len(view.ids), dtype=bool)
    alone[common] = False
    return view.sums(view.mass * alone)


def _entries(live: View, other: View) -> Differences:
    here, there = match(live, other)
    kept = np.zeros(live.rows)
    np.maximum.at(kept, live.row_of[here], np.abs(np.log(live.mass[here] / np.maximum(other.mass[there], TINY))))
    return {"kept": kept, **_top1(live, other)}


def _top1(live: View, other: View) -> Differences:
    """What the live side did not keep counts there as the least that it kept."""
    ours, theirs = best(live), best(other)
    rows = np.flatnonzero((ours >= 0) & (theirs >= 0))
    ours, theirs = ours[rows], theirs[rows]
    least = np.full(live.rows, np.inf)
    np.minimum.at(least, live.row_of, live.mass)
    gaps = np.log(live.mass[ours] / _lookup(live, other.keys[theirs], missing=least[rows]))
    same = _lookup(other, live.keys[ours], missing=np.zeros(len(rows))) >= other.mass[theirs]
    top1, gap = np.full(live.rows, np.nan), np.zeros(live.rows)
    top1[rows], gap[rows] = same, np.where(same, 0, gaps)
    return {"top1": top1, "gap": gap}


def _lookup(view: View, keys: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """[M] the masses at `keys` [M], `missing` [M] where there is none."""
    _, here, there = np.intersect1d(view.keys, keys, return_indices=True)
    masses = missing.copy()
    masses[there] = view.mass[here]
    return masses


def _sample(live: View, other: View) -> Differences:
    """`live` has its certain entries alone."""
    here, there = match(live, other)
    weights = np.zeros(len(live.ids))
    weights[here] = other.mass[there]
    return {"added": live.sums((weights - live.mass) ** 2), "restored": live.sums(weights)}
