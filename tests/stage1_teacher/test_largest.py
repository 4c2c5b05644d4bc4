"""What is found by way of block maxima is what `torch.topk` finds, whatever the row is long, tied or masked."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stage1_teacher.largest import BLOCK, block_maxima, k_largest


def rows(seed: int, vocab: int, ties: bool = False) -> torch.Tensor:
    values = torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed))
    return (values * 2).round() if ties else values


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9000), st.integers(1, 70), st.integers(0, 2**32 - 1), st.booleans())
def test_the_k_largest(vocab, k, seed, ties):
    values = rows(seed, vocab, ties)
    maxima = block_maxima(values)
    assert (maxima.amax(-1) == values.amax(-1)).all()
    found, ids = k_largest(values, maxima, k, min(k, maxima.shape[-1]))
    assert (found == values.topk(min(k, vocab)).values).all()
    assert (values.gather(-1, ids) == found).all()
    assert all(len(set(row)) == len(row) for row in ids.tolist())


def test_fewer_blocks_find_what_reaches_a_bound():
    values = rows(0, 151_936)
    bound = 3.9
    maxima = block_maxima(values)
    searched = int((maxima >= bound).sum(-1).max())
    found, ids = k_largest(values, maxima, 200, searched)
    assert 1 < searched < 30 and found.shape[1] < 30 * BLOCK
    for row in range(3):
        assert sorted(ids[row][found[row] >= bound].tolist()) == torch.nonzero(values[row] >= bound)[:, 0].tolist()


@pytest.mark.parametrize("vocab", [64 * 100, 64 * 100 + 1, 64 * 101 - 1])
def test_masked_ids_are_told_from_what_is_beyond_the_vocabulary(vocab):
    """All but two ids masked: others come after them, each an id of the vocabulary, and once."""
    values = torch.full((2, vocab), -torch.inf)
    values[:, [7, vocab - 1]] = torch.tensor([1.0, 2.0])
    found, ids = k_largest(values, block_maxima(values), 20, 20)
    assert ids[:, :2].tolist() == [[vocab - 1, 7]] * 2 and (found[:, 2:] <= torch.finfo(torch.float32).min).all()
    assert all(len(set(row)) == 20 and max(row) < vocab for row in ids.tolist())


def test_no_number_is_seen():
    values = rows(0, 10_000)
    values[1, 5000] = torch.nan
    assert torch.isnan(block_maxima(values).amax(-1)).tolist() == [False, True, False]
