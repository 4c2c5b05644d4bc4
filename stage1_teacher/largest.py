"""The largest entries of long rows, found by way of the maxima of blocks: one pass over a row, where `torch.topk` takes many.

A row's k largest entries lie in the k blocks with the largest maxima. So the maxima are taken once (they give the row's largest
entry too), and the search goes on in k blocks alone. Rows that are short beside k are left to `torch.topk`.
"""

import torch
from torch import Tensor

BLOCK = 64
"""Ids a block: id j belongs to block j mod B, of B = ceil(V / 64), so that maxima are taken over whole rows of memory."""


def block_maxima(values: Tensor) -> Tensor:
    """[R, B] of values [R, V]; NaN where there is one in the block."""
    vocab = values.shape[-1]
    blocks = -(-vocab // BLOCK)
    whole = vocab // blocks
    maxima = values[:, : whole * blocks].unflatten(-1, (whole, blocks)).amax(1)
    rest = values[:, whole * blocks :]
    maxima[:, : rest.shape[-1]] = torch.maximum(maxima[:, : rest.shape[-1]], rest)
    return maxima


def k_largest(values: Tensor, maxima: Tensor, k: int, searched: int) -> tuple[Tensor, Tensor]:
    """As `values.topk(k)`: values and ids, [R, k] each or fewer, from the `searched` best blocks; with k of them all are found.

    Fewer blocks are enough where only entries above a bound are wanted, and no row has more that reach it. A value of -inf may
    come back as float32's least number: what is beyond the vocabulary has to be less.
    """
    vocab, blocks = values.shape[-1], maxima.shape[-1]
    if searched * BLOCK * 2 > vocab:
        return values.topk(min(k, vocab), dim=-1)
    chosen = maxima.topk(searched, dim=-1, sorted=False).indices
    ids = (chosen[:, None] + blocks * torch.arange(-(-vocab // blocks), device=values.device)[:, None]).flatten(1)
    found = values.gather(-1, ids.clamp(max=vocab - 1)).clamp_(min=torch.finfo(values.dtype).min)
    found.masked_fill_(ids >= vocab, -torch.inf)
    largest, places = found.topk(min(k, searched * (vocab // blocks)), dim=-1)
    return largest, ids.gather(-1, places)
