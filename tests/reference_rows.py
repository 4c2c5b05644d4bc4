"""Documents whose rows are distributions, kept by slow and obvious float64 code: what codecs and targets are compared with."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from pipeline.contract.logit_cache.draws import DRAW_BITS, row_draws
from pipeline.contract.logit_cache.schema import CachedDocument

CORNERS = (0, 2**16, 2**16 + 1, 2**17, 2**17 + 5, 151_643, 151_935, 2**18, 2**20 - 1)
"""Ids that lose something in 16, 17, 18 or 20 bits."""


def some_ids(rng: np.random.Generator, vocab: int, count: int) -> np.ndarray:
    """[count] different ids below `vocab`, the largest one and others of `CORNERS` often among them."""
    corners = [i for i in {*CORNERS, vocab - 1} if i < vocab and rng.random() < 0.7][:count]
    more = rng.choice(vocab, min(vocab, count + len(corners)), replace=False)
    ids = np.concatenate([corners, more[~np.isin(more, corners)]])[:count]
    return rng.permutation(ids).astype(np.int32)


def kept_document(
    rng: np.random.Generator, counts: Sequence[int], vocab: int, other_temperatures: Sequence[float] = (), entropy: bool = False
) -> CachedDocument:
    """T = len(counts) + 1 tokens; entries of a row fall and sum to one with their tail at temperature 1."""
    rows = len(counts)
    tail = np.where(np.array(counts, dtype=int) == 0, 0.0, np.log(10) * rng.uniform(-12, -0.001, rows))
    parts = [falling_logprobs(rng, count, -math.expm1(mass)) for count, mass in zip(counts, tail, strict=True)]
    return CachedDocument(
        token_ids=some_ids(rng, vocab, rows + 1) if vocab > rows else rng.integers(0, vocab, rows + 1).astype(np.int32),
        counts=np.array(counts, dtype=np.uint8),
        tail_logprob=tail.astype(np.float32),
        label_logprob=-rng.exponential(3, rows).astype(np.float32),
        ids=np.concatenate([np.zeros(0, dtype=np.int32), *(some_ids(rng, vocab, count) for count in counts)]),
        logprobs=np.concatenate([np.zeros(0), *parts]).astype(np.float32),
        entropy=rng.exponential(2, rows).astype(np.float32) if entropy else None,
        other_tails={tau: np.log(rng.uniform(1e-6, 1, rows)).astype(np.float32) for tau in other_temperatures},
    )


def falling_logprobs(rng: np.random.Generator, count: int, mass: float) -> np.ndarray:
    """[count] float64, most probable first, of sum `mass`; peaked or flat."""
    scores = np.sort(rng.normal(0, rng.choice([0.1, 2, 6]), count))[::-1]
    return scores - np.logaddexp.reduce(scores) + math.log(mass) if count else scores


def keep_sampled(q: np.ndarray, c: float, draw: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids that are certain, most probable first, and ids that are drawn from the row q [V]: exact integers, one id at a time."""
    certain = sorted(np.flatnonzero(q >= c).tolist(), key=lambda token: -q[token])
    drawn, end, point = [], 0, draw
    for token in np.flatnonzero(q < c).tolist():
        end += int(q[token] / c * 2**DRAW_BITS)
        if point < end:
            drawn.append(token)
            point += 2**DRAW_BITS
    return np.array(certain, dtype=np.int64), np.array(drawn, dtype=np.int64)


def sampled_document(rng: np.random.Generator, rows: int, vocab: int, slots: int, support: int = 400) -> CachedDocument:
    """A sample of c = 1/slots of rows that give mass to at most `support` ids, some of them peaked, some flat."""
    token_ids = rng.integers(0, vocab, rows + 1).astype(np.int32)
    made = [_sampled_row(rng, vocab, slots, support, int(draw)) for draw in row_draws(token_ids)]
    none = {"ids": np.zeros(0, dtype=np.int32), "logprobs": np.zeros(0, dtype=np.float32)}
    flat = {name: np.concatenate([none[name], *(row[name] for row in made)]) for name in none}
    per_row = {name: np.array([row[name] for row in made], dtype=kind) for name, kind in ROW_TYPES.items()}
    return CachedDocument(token_ids, label_logprob=-rng.exponential(3, rows).astype(np.float32), **per_row, **flat)


ROW_TYPES = {"counts": np.uint8, "drawn": np.uint8, "tail_logprob": np.float32, "entropy": np.float32, "tail_square": np.float64}


def _sampled_row(rng: np.random.Generator, vocab: int, slots: int, support: int, draw: int) -> dict[str, np.ndarray]:
    ids = np.sort(some_ids(rng, vocab, min(support, vocab)))
    scores = rng.normal(0, rng.choice([0, 1, 3, 30]), len(ids))
    return sample_row(ids, np.exp(scores - np.logaddexp.reduce(scores)), slots, draw)


def sample_row(ids: np.ndarray, q: np.ndarray, slots: int, draw: int) -> dict[str, np.ndarray]:
    """The row's part of a sampled document, by the names of `CachedDocument`."""
    certain, drawn = keep_sampled(q, 1 / slots, draw)
    tail = np.delete(q, certain)
    with np.errstate(divide="ignore"):
        tail_logprob = np.log(tail.sum())
    return {
        "ids": ids[np.concatenate([certain, drawn])].astype(np.int32),
        "logprobs": np.concatenate([np.log(q[certain]), np.full(len(drawn), -math.log(slots))]).astype(np.float32),
        "counts": np.array(len(certain) + len(drawn)),
        "drawn": np.array(len(drawn)),
        "tail_logprob": tail_logprob,
        "entropy": -(q * np.log(np.maximum(q, 1e-300))).sum(),
        "tail_square": (tail**2).sum(),
    }


def rows_of(document: CachedDocument, values: np.ndarray) -> Iterator[np.ndarray]:
    """`values` [N] cut into the document's rows, in the order they are stored in."""
    ends = np.cumsum(document.counts, dtype=np.int64)
    return iter(np.split(values, ends)[:-1])
