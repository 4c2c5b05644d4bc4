"""Points on a line of whole numbers: the stretch that running sums in Python's integers give."""

from bisect import bisect_right
from itertools import accumulate

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stage1_teacher.line import BLOCK, ids_at

UNIT = 1 << 40


def expected(lengths: list[int], points: list[int]) -> list[int]:
    ends = list(accumulate(lengths))
    return [bisect_right(ends, point) for point in points if point < ends[-1]]


def assert_same(lengths: torch.Tensor, points: torch.Tensor) -> None:
    ids, counts = ids_at(lengths, points)
    for row, (stretches, at) in enumerate(zip(lengths.tolist(), points.tolist(), strict=True)):
        assert ids[row, : counts[row]].tolist() == expected([int(length) for length in stretches], at)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5 * BLOCK), st.integers(1, 200), st.integers(0, 2**32 - 1))
def test_every_point_falls_where_integers_say(vocab, slots, seed):
    """Stretches from nothing to one unit, many of them empty, and points a unit apart, as a sample has them."""
    generator = torch.Generator().manual_seed(seed)
    share = torch.rand(3, vocab, generator=generator) ** torch.tensor([[1.0], [8.0], [60.0]])
    lengths = (share * UNIT).trunc() * (torch.rand(3, vocab, generator=generator) < 0.7)
    start = torch.randint(UNIT, (3, 1), generator=generator)
    assert_same(lengths, start + torch.arange(slots) * UNIT)


@pytest.mark.parametrize("vocab", [BLOCK, 2 * BLOCK, 2 * BLOCK + 1])
def test_points_on_the_ends_of_stretches_belong_to_the_next(vocab):
    """Every end, every block's end, one before and one after each."""
    lengths = torch.full((1, vocab), float(UNIT))
    ends = torch.arange(vocab + 1)[None] * UNIT
    for shift in (-1, 0, 1):
        assert_same(lengths, (ends + shift).clamp(min=0))


def test_long_rows_lose_no_unit():
    """151,936 stretches whose sum is far beyond float32's 24 bits."""
    lengths = (torch.rand(2, 151_936, generator=torch.Generator().manual_seed(0)) * 2**30).trunc()
    total = lengths.double().sum(-1).long()
    points = torch.stack([torch.linspace(0, int(most) - 1, 500, dtype=torch.float64).long() for most in total])
    assert_same(lengths, points)


def test_no_rows():
    ids, counts = ids_at(torch.zeros(0, 100), torch.zeros(0, 5, dtype=torch.int64))
    assert ids.shape == (0, 5) and counts.shape == (0,)
