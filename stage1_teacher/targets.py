"""Which entries of a distribution to keep: functions of one chunk of rows [R, V], for any engine to call.

    topk        the k largest
    threshold   every q >= c, the k largest of them
    sampled     every q >= c, and a systematic sample of the others: each is drawn with probability q / c, to count c

All of them overwrite `logits` (float32 [R, V]) and keep every mass as a log-sum-exp over the ids it is of.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.contract.logit_cache.draws import DRAW_BITS
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.largest import block_maxima, k_largest
from stage1_teacher.line import ids_at

NEVER = -1e30
"""In the place of a logit of -inf: probability 0 without 0 * inf."""


class Kept(NamedTuple):
    """What is kept of R rows, in K slots a row; values are natural-log probabilities over the whole vocabulary.

    Attributes:
        ids: [R, K] int64; of row r the first counts[r] slots count.
        logprobs: [R, K] float32; log c for a drawn entry.
        counts: [R] int64, entries of each row.
        drawn: [R] int64, how many of them, the last ones, were drawn and not kept for certain.
        tail_logprob: [R, 1 + E] log of the mass outside the entries that are kept for certain, at temperature 1 and at E others.
        label_logprob: [R]
        entropy: [R] of the whole distribution, nats.
        tail_square: [R] sum of q^2 over the tail: what a sample's expected error is made of.
    """

    ids: Tensor
    logprobs: Tensor
    counts: Tensor
    drawn: Tensor
    tail_logprob: Tensor
    label_logprob: Tensor
    entropy: Tensor
    tail_square: Tensor


def keep_in_chunks(
    hidden: Tensor, head: Callable[[Tensor], Tensor], labels: Tensor, draws: Tensor, targets: Sequence[Targets], rows_per_chunk: int
) -> Iterator[list[Kept]]:
    """Kept entries of hidden states [R, D] for each of the targets, chunk after chunk: [R, V] never exists.

    `head` gives the float32 logits [C, V] of hidden states [C, D]; `labels` and `draws` are [R] each.
    """
    for start in range(0, len(hidden), rows_per_chunk):
        chunk = slice(start, start + rows_per_chunk)
        logits = head(hidden[chunk])
        last = len(targets) - 1
        yield [
            keep(logits if place == last else logits.clone(), labels[chunk], each, draws[chunk])  # they are overwritten
            for place, each in enumerate(targets)
        ]


def keep(logits: Tensor, labels: Tensor, targets: Targets, draws: Tensor) -> Kept:
    """Apply a shard's `targets`; `labels` [R], `draws` [R] as `row_draws` gives them."""
    if targets.mode == "sampled":
        return keep_sampled(logits, labels, targets.c, draws)
    threshold = targets.c if targets.mode == "threshold" else 0.0
    return keep_largest(logits, labels, targets.k, threshold, targets.other_temperatures)


def keep_largest(logits: Tensor, labels: Tensor, k: int, c: float = 0.0, temperatures: Sequence[float] = ()) -> Kept:
    """Keep the k largest of each row, or those of them that are c or more; a row may then keep none."""
    rows = _measure(logits, labels)
    kept = _largest(rows, k, c)
    tails = [_tail_logprob(rows.weights, kept, rows.normalizer), *_tails_at(rows, kept, temperatures)]
    return kept._replace(tail_logprob=torch.stack(tails, dim=-1), entropy=_entropy(rows, kept))


def keep_sampled(logits: Tensor, labels: Tensor, c: float, draws: Tensor) -> Kept:
    """Keep q >= c for certain, and draw from the rest of the vocabulary: unbiased, at most 1/c + 1 entries a row.

    The rest is laid end to end on a line, id after id, each q / c long; an entry is kept if one of the points
    draw, draw + 1, draw + 2, ... falls on it (`line.py`).
    """
    rows = _measure(logits, labels)
    slots = round(1 / c)
    certain = _largest(rows, slots, c)
    tail = _tail_logprob(rows.weights, certain, rows.normalizer)  # the weights are the tail's alone from here on
    entropy = _entropy(rows, certain)
    scale = (-rows.normalizer).exp()
    square = (torch.linalg.vector_norm(rows.weights, dim=-1) * scale) ** 2
    lengths = rows.weights.mul_((scale * (2.0**DRAW_BITS / c))[:, None]).trunc_()
    points = draws[:, None] + (torch.arange(slots, device=draws.device) << DRAW_BITS)  # [R, slots]
    ids, drawn = ids_at(lengths, points)
    return _append(certain._replace(tail_logprob=tail[:, None], entropy=entropy, tail_square=square), ids, drawn, c)


class _Rows(NamedTuple):
    """A chunk of rows and what is known of them before any entry is hidden. The largest logit of a row is taken from all of them."""

    logits: Tensor  # [R, V] less the row's largest; gone once the entropy is known
    weights: Tensor  # [R, V] their exponentials: one for all sums
    maxima: Tensor  # [R, B] of blocks of logits
    normalizer: Tensor  # [R] log of the weights' sum
    label_logprob: Tensor  # [R]


def _measure(logits: Tensor, labels: Tensor) -> _Rows:
    maxima = block_maxima(logits)
    largest = maxima.amax(-1, keepdim=True)
    logits.sub_(largest)
    weights = logits.exp()
    normalizer = weights.sum(-1).log()
    label = logits.gather(-1, labels[:, None])[:, 0].clamp_(min=NEVER) - normalizer
    return _Rows(logits, weights, maxima.sub_(largest), normalizer, label)


def _largest(rows: _Rows, k: int, c: float) -> Kept:
    """The k largest entries that are c or more, most probable first; tail and entropy are left to the caller."""
    normalizer = rows.normalizer[:, None]
    blocks = min(k, rows.maxima.shape[-1])
    if c and len(rows.maxima):
        reach = ((rows.maxima - normalizer).exp() >= c).sum(-1).max()
        blocks = min(blocks, max(1, int(reach)))
    values, ids = k_largest(rows.logits, rows.maxima, k, blocks)
    logprobs = values.clamp_(min=NEVER) - normalizer
    counts = (logprobs.exp() >= c).sum(-1)
    none = torch.zeros_like(counts)
    return Kept(ids, logprobs, counts, none, normalizer, rows.label_logprob, none.float(), none.float())


def _tail_logprob(weights: Tensor, kept: Kept, normalizer: Tensor) -> Tensor:
    """[R] log of the mass outside the kept entries, -inf where all are kept: the sum of the other weights, never 1 - sum(p).

    The kept entries' weights are 0 afterwards. What is less than float32's smallest number beside the row's largest entry is no
    mass, and NEVER.
    """
    kept_weights = weights.gather(-1, kept.ids).masked_fill_(_filled(kept), 0.0)
    tail = weights.scatter_(-1, kept.ids, kept_weights).sum(-1).log().clamp_(min=NEVER) - normalizer
    return tail.masked_fill_(kept.counts == weights.shape[-1], -torch.inf)


def _tails_at(rows: _Rows, kept: Kept, temperatures: Sequence[float]) -> Iterator[Tensor]:
    """[R] the same at each temperature."""
    for tau in temperatures:
        weights = (rows.logits / tau).exp_()
        yield _tail_logprob(weights, kept, weights.sum(-1).log())


def _entropy(rows: _Rows, kept: Kept) -> Tensor:
    """[R] nats, once the kept entries are out of the weights; the product takes the logits' place.

    A logit of -inf has weight 0 and counts nothing. einsum would add up one after the other: 0.001 nats off.
    """
    outside = rows.logits.mul_(rows.weights).nansum(-1) / rows.normalizer.exp()
    logits = kept.logprobs + rows.normalizer[:, None]
    inside = (kept.logprobs.exp() * logits).masked_fill_(~_filled(kept), 0).sum(-1)
    return (rows.normalizer - outside - inside).clamp_(min=0)


def _filled(kept: Kept) -> Tensor:
    """[R, K] the slots that count."""
    return torch.arange(kept.ids.shape[-1], device=kept.ids.device) < kept.counts[:, None]


def _append(certain: Kept, ids: Tensor, drawn: Tensor, c: float) -> Kept:
    """Put each row's drawn entries right behind its certain ones."""
    width = int((certain.counts + drawn).max()) if len(ids) else 0
    slots = torch.arange(width, device=ids.device)[None]  # [1, width]
    from_drawn = (slots - certain.counts[:, None]).clamp(0, ids.shape[-1] - 1)
    is_certain = slots < certain.counts[:, None]
    first = slots.clamp(max=certain.ids.shape[-1] - 1).expand(len(ids), -1)
    return certain._replace(
        ids=torch.where(is_certain, certain.ids.gather(-1, first), ids.gather(-1, from_drawn)),
        logprobs=certain.logprobs.gather(-1, first).masked_fill(~is_certain, math.log(c)),
        counts=certain.counts + drawn,
        drawn=drawn,
    )
