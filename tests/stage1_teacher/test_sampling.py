"""Systematic samples of a row: unbiased for every id, of different ids, in exact integers."""

import math

import numpy as np
import pytest
import torch
from benchmarks.unbiasedness import (
    before_coding,
    binomial_tail,
    chi_square_of_ranks,
    exact,
    heavy_row,
    judge,
    judge_certain,
    sample,
    through,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import keep_sampled as slow_keep_sampled

from pipeline.contract.logit_cache.draws import DRAW_BITS, row_draws
from stage1_teacher.targets import keep_sampled

SLOTS = [2, 3, 64, 100, 128, 254]
VOCAB, DRAWS, C = 2000, 4000, 1 / 64


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Rows this short are faster without a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def labels(rows: int) -> torch.Tensor:
    return torch.zeros(rows, dtype=torch.int64)


def keep(logits: torch.Tensor, slots: int, draws) -> list[tuple[list[int], list[int], np.ndarray]]:
    """Certain ids, drawn ids and logprobs of each row."""
    kept = keep_sampled(logits.clone(), labels(len(logits)), 1 / slots, torch.as_tensor(draws))
    rows = zip(kept.ids.tolist(), kept.logprobs.numpy(), kept.counts.tolist(), kept.drawn.tolist())
    return [(ids[: count - drawn], ids[count - drawn : count], values[:count]) for ids, values, count, drawn in rows]


def some_rows(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """[R, V] from flat to peaked."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocab, generator=generator) * torch.linspace(0, 6, rows)[:, None]


@pytest.mark.parametrize("slots", [2, 64, 128])
def test_one_id_at_a_time_in_whole_numbers_gives_the_same(slots):
    """The same float32 probabilities; dividing by these c is exact, so that the sums are equal to the last bit."""
    logits = some_rows(0, 40, 3000)
    draws = row_draws(np.arange(41, dtype=np.int32))
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    q = (weights * (-weights.sum(-1, keepdim=True).log()).exp()).double().numpy()
    for row, (certain, drawn, _) in enumerate(keep(logits, slots, draws)):
        wanted_certain, wanted_drawn = slow_keep_sampled(q[row], 1 / slots, int(draws[row]))
        assert certain == wanted_certain.tolist()
        assert drawn == wanted_drawn.tolist()


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.integers(1, 700), st.sampled_from(SLOTS), st.integers(0, 2**32 - 1))
def test_what_every_sample_is(rows, vocab, slots, seed):
    """Also of vocabularies smaller than 1/c."""
    logits = some_rows(seed, rows, vocab)
    q = logits.double().softmax(-1).numpy()
    draws = np.random.default_rng(seed).integers(0, 1 << DRAW_BITS, rows)
    for row, (certain, drawn, logprobs) in enumerate(keep(logits, slots, draws)):
        assert len({*certain, *drawn}) == len(certain) + len(drawn) <= min(slots + 1, vocab)
        assert set(np.flatnonzero(q[row] > 1.00001 / slots)) <= set(certain) <= set(np.flatnonzero(q[row] > 0.99999 / slots))
        assert (np.diff(logprobs[: len(certain)]) <= 0).all()
        np.testing.assert_allclose(logprobs[: len(certain)], np.log(q[row, certain]), atol=2e-5)
        assert (logprobs[len(certain) :] == np.float32(math.log(1 / slots))).all()
        assert drawn == sorted(drawn)
        line = np.delete(q[row], certain).sum() * slots
        assert math.floor(line - 1e-3) <= len(drawn) <= math.ceil(line + 1e-3)


def test_the_most_entries():
    """Every id just below c, or just c: 1/c of them at most, whichever way c rounds."""
    for slots in range(2, 255):
        ((certain, drawn, _),) = keep(torch.zeros(1, slots), slots, [0])
        assert len(certain) + len(drawn) in (slots - 1, slots)
        ((certain, drawn, _),) = keep(torch.zeros(1, slots + 1), slots, [(1 << DRAW_BITS) - 1])
        assert not certain and len(drawn) in (slots - 1, slots)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("vocab", [1, 9, 300, 2000])
def test_the_mean_over_all_draws_is_the_distribution(slots, vocab):
    """The integral over the draw, not a simulation: an id is drawn on an interval of draws of length q / c."""
    points = 1024
    draws = (2 * np.arange(points) + 1) * (1 << DRAW_BITS) // (2 * points)
    logits = heavy_row(vocab) if vocab > 9 else torch.arange(vocab) * 0.7
    q, weight = exact(logits), np.zeros(vocab)
    for start in range(0, points, 256):
        for certain, drawn, _ in keep(logits.repeat(256, 1), slots, draws[start : start + 256]):
            weight[certain] += q[certain] / points
            weight[drawn] += 1 / slots / points
    assert np.abs(weight - q).max() * slots <= 1 / points + 1e-4


def test_the_tail_and_what_its_errors_are_made_of():
    logits = some_rows(3, 12, 5000)
    kept = keep_sampled(logits.clone(), labels(12), 1 / 128, torch.zeros(12, dtype=torch.int64))
    log_q = logits.double().log_softmax(-1)
    for row, (certain, _, _) in enumerate(keep(logits, 128, np.zeros(12, dtype=np.int64))):
        log_q[row, certain] = -torch.inf
    np.testing.assert_allclose(kept.tail_logprob[:, 0], log_q.logsumexp(-1), atol=2e-5)
    np.testing.assert_allclose(kept.tail_square, (2 * log_q).exp().sum(-1), rtol=1e-4)
    whole = logits.double().log_softmax(-1)
    np.testing.assert_allclose(kept.entropy, -(whole.exp() * whole).sum(-1), atol=5e-5)
    np.testing.assert_allclose(kept.label_logprob, whole[:, 0], atol=2e-5)


def test_ids_that_a_teacher_masks_are_never_drawn():
    logits = some_rows(4, 60, 500)
    logits[:, 100:] = -torch.inf
    for certain, drawn, _ in keep(logits, 254, row_draws(np.arange(61, dtype=np.int32))):
        assert max(certain + drawn) < 100


def test_a_draw_of_0_falls_on_the_first_id_that_has_mass():
    logits = torch.zeros(1, 500)
    logits[0, :3] = -torch.inf
    ((_, drawn, _),) = keep(logits, 64, [0])
    assert drawn[0] == 3 and len(drawn) in (63, 64)


@pytest.mark.parametrize("size", [1, 2, 7, 64])
def test_a_chunk_of_rows_draws_what_each_row_draws(size):
    logits, draws = some_rows(5, 64, 2000), row_draws(np.arange(65, dtype=np.int32))
    whole = keep(logits, 128, draws)
    parts = [row for start in range(0, 64, size) for row in keep(logits[start : start + size], 128, draws[start : start + size])]
    assert [part[:2] for part in parts] == [row[:2] for row in whole]


@pytest.fixture(scope="module")
def row():
    """A heavy-headed row of 2,000 ids, and 4,000 samples of it by a document's own draws."""
    logits = heavy_row(VOCAB, deviation=1.5)
    return exact(logits), sample(logits, C, DRAWS)


@pytest.mark.parametrize("stage", ["before coding", "plain", "ranks", "streams"])
def test_no_id_is_drawn_more_or_less_often_than_by_chance(row, stage):
    """See `tests/benchmarks/unbiasedness.py`, of which this is the small version: as many ids beyond four standard errors as chance
    allows, no rare id drawn impossibly often, no bias by rank; each would fail for one good sampler in a thousand."""
    q, document = row
    weights = before_coding(document, q, C) if stage == "before coding" else through(stage, document, C, VOCAB)
    verdict = judge(q, np.bincount(weights.ids, weights.weight, VOCAB) / DRAWS, DRAWS, C)
    assert verdict.often + verdict.rare == (q < C).sum() and verdict.often > 500 and verdict.rare > 50
    assert verdict.beyond_chance > 1e-3
    assert verdict.rarest > 1e-3
    assert chi_square_of_ranks(q, weights, DRAWS, C)[0] > 1e-3


def test_what_bias_coding_leaves(row):
    """Multiples of c: none in 4.5 standard errors. Square roots: certain entries are scaled to a mass in float16, at most 2^-12 of the
    tail's logarithm off, and the scaling of rounded values is a quotient, right to second order only."""
    q, document = row
    multiples = judge_certain(q, through("streams", document, C, VOCAB), DRAWS, C)
    assert multiples.largest_z < 4.5 and abs(multiples.mass_z) < 4.5
    roots = judge_certain(q, through("ranks", document, C, VOCAB), DRAWS, C)
    assert abs(roots.mass_relative) < 2e-4 and roots.largest_relative < 3e-3


def test_the_checks_see_a_bias(row):
    """Draws in proportion to q^0.9 would be noticed."""
    q, document = row
    flatter = np.where(q < C, q**0.9, 0)
    flatter *= q[q < C].sum() / flatter.sum()
    weights = before_coding(document, q, C)
    mean = np.bincount(weights.ids, weights.weight, VOCAB) / DRAWS
    assert judge(flatter, mean, DRAWS, C).beyond_chance == 0
    assert chi_square_of_ranks(flatter, weights, DRAWS, C)[0] < 1e-6


def test_binomial_tails_against_exact_sums():
    def wanted(n: int, p: float, k: int) -> float:
        return sum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))

    for n, p, k in ((10, 0.3, 0), (10, 0.3, 4), (10, 0.3, 10), (10, 0.3, 11), (300, 0.01, 9), (300, 0.9, 289), (300, 1e-6, 1)):
        assert binomial_tail(n, np.array([p]), np.array([float(k)]))[0] == pytest.approx(wanted(n, p, k), rel=1e-9)
