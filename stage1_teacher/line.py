"""Points on a line of stretches laid end to end: which stretch each falls on, without an [R, V] array of running sums.

Stretches are whole numbers below 2^41 and a line is shorter than 2^49, so that float64 holds every sum of them exactly: sums have
one value, in whatever order a device takes them. Blocks of stretches are added up, then those blocks alone that a point falls on.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK = 64
"""Stretches a block."""
ROWS_AT_ONCE = 8
"""As float64 they are twice the size of the line, and stay in a CPU's cache."""


def ids_at(lengths: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Of R lines with V stretches, `lengths` [R, V] float32 in whole numbers: the stretch of each of the rising `points` [R, S] int64.

    Returns:
        ids [R, S] int64 and counts [R] int64: the first counts[r] points fall on line r, the others beyond its end, and their ids
        mean nothing.
    """
    vocab, at = lengths.shape[-1], points.double()
    padded = pad(lengths, (0, -vocab % BLOCK)) if vocab % BLOCK else lengths  # even by nothing it would be copied
    stretches = padded.unflatten(-1, (-1, BLOCK))  # [R, B, BLOCK]
    sums = torch.cat([few.double().sum(-1) for few in stretches.split(ROWS_AT_ONCE)])
    ends = sums.cumsum(-1)
    blocks = torch.searchsorted(ends, at, right=True).clamp_(max=sums.shape[-1] - 1)  # [R, S]
    inside = stretches.gather(1, blocks[..., None].expand(-1, -1, BLOCK)).double().cumsum(-1)  # [R, S, BLOCK]
    offsets = at - (ends - sums).gather(-1, blocks)
    steps = torch.searchsorted(inside, offsets[..., None], right=True)[..., 0]
    return (blocks * BLOCK + steps).clamp_(max=vocab - 1), (at < ends[:, -1:]).sum(-1)
