"""What a byte costs: bounds of the two quantisers, and roundings at random that are right on average."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import ROW_TYPES, rows_of, sample_row, sampled_document

from pipeline.contract.logit_cache import quantizers
from pipeline.contract.logit_cache.draws import DRAW_BITS
from pipeline.contract.logit_cache.quantizers import NONE, LogDomain, SquareRoot, round_multiples, round_square_root
from pipeline.contract.logit_cache.schema import CachedDocument

SLOTS = [2, 3, 7, 64, 128, 254]
LOGPROBS = np.concatenate([-np.geomspace(1e-8, 40, 20_000), [0, 1e-7, -1e30, -np.inf]]).astype(np.float32)


def test_square_root_codes_are_half_a_step_of_the_root_off():
    codes, q = SquareRoot().encode(LOGPROBS), np.exp(LOGPROBS.astype(float))
    assert ((codes == NONE) == (q < 0.25 / 255**2)).all()
    has = codes != NONE
    assert codes[has].min() == 1 and codes.max() == 255
    restored = SquareRoot().values(1.0)[codes[has]].astype(float)
    assert np.abs(np.sqrt(restored) - np.sqrt(q[has])).max() <= 0.5 / 255 + 1e-7


def test_square_roots_are_for_temperature_1():
    with pytest.raises(AssertionError):
        SquareRoot().values(2.0)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0, 4.0])
def test_logarithmic_codes_are_a_32nd_of_a_nat_off(temperature):
    codes, logprobs = LogDomain().encode(LOGPROBS), LOGPROBS.astype(float)
    assert ((codes == NONE) == (logprobs < -255.5 / 16)).all()
    has = codes != NONE
    assert codes[has].min() == 0 and codes.max() == 255
    restored = np.log(LogDomain().values(temperature)[codes[has]].astype(float))
    assert np.abs(restored - logprobs[has] / temperature).max() <= (1 / 32 + 1e-6) / temperature


def certain_only(q: np.ndarray) -> CachedDocument:
    """A sample whose every row is one certain entry of probability q [R]."""
    rows = len(q)
    ones, none = np.ones(rows, dtype=np.uint8), np.zeros(rows, dtype=np.float32)
    tokens, logprobs = np.arange(rows + 1, dtype=np.int32), np.log(q).astype(np.float32)
    return CachedDocument(tokens, ones, none, none, np.zeros(rows, dtype=np.int32), logprobs, drawn=np.zeros(rows, dtype=np.uint8))


@pytest.mark.parametrize("q", [1 / 254, (16.8 / 255) ** 2, 1 / 128, 0.013, 0.1, (100 / 255) ** 2, 0.5, 0.9, (254.5 / 255) ** 2, 1.0])
def test_a_square_root_rounded_at_random_is_right_on_average(q):
    """Mean of code^2 / 255^2 over 40,000 rows within 4.5 standard errors of q: 7 in a million are beyond by chance."""
    codes = round_square_root(certain_only(np.full(40_000, q))).astype(float)
    root = 255 * np.sqrt(q)
    assert np.abs(codes - root).max() < 1 + 1e-4
    weights = codes**2 / 255**2
    assert abs(weights.mean() - q) <= 4.5 * weights.std() / 200 + 1e-7 * q


def test_square_roots_round_independently_of_their_neighbours():
    exact = sampled_document(np.random.default_rng(0), 300, 400, 254)
    scaled = np.exp(exact.logprobs.astype(float)) * 255**2
    surprise = round_square_root(exact).astype(float) ** 2 - scaled
    certain = [part[: len(part) - int(drawn)] for part, drawn in zip(rows_of(exact, surprise), exact.drawn)]
    pairs = np.concatenate([np.stack([part[:-1], part[1:]]) for part in certain if len(part) > 1], axis=1)
    assert pairs.shape[1] > 5000
    assert abs(np.corrcoef(pairs)[0, 1]) < 4.5 / np.sqrt(pairs.shape[1])


def test_drawn_entries_have_the_code_0_and_certain_ones_never():
    exact = sampled_document(np.random.default_rng(1), 60, 5000, 254)
    for codes, drawn in zip(rows_of(exact, round_square_root(exact)), exact.drawn):
        assert not codes[len(codes) - int(drawn) :].any()
        assert (codes[: len(codes) - int(drawn)] >= 15).all()


@pytest.mark.parametrize("rounding", [round_square_root, lambda document: round_multiples(document, 1 / 128)])
def test_rounding_again_gives_the_same(rounding):
    one, other = (sampled_document(np.random.default_rng(2), 20, 5000, 128) for _ in range(2))
    np.testing.assert_array_equal(rounding(one), rounding(other))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 40), st.sampled_from(SLOTS), st.sampled_from([3, 400, 2**20]), st.integers(0, 2**32 - 1))
def test_multiples_are_whole_sum_to_one_and_are_the_neighbours_of_the_weight(rows, slots, vocab, seed):
    exact = sampled_document(np.random.default_rng(seed), rows, vocab, slots)
    multiples = round_multiples(exact, 1 / slots)
    assert multiples.dtype == np.int16 and len(multiples) == len(exact.ids)
    for part, logprobs, drawn in zip(rows_of(exact, multiples), rows_of(exact, exact.logprobs), exact.drawn):
        assert part.sum() == slots
        certain = len(part) - int(drawn)
        assert (part[certain:] == 1).all()
        assert (np.abs(part[:certain] - slots * np.exp(logprobs[:certain].astype(float))) < 1 + 1e-4).all()


def samples(q: np.ndarray, slots: int, draws: np.ndarray) -> CachedDocument:
    """A document of equal rows q [V], sampled with these draws [R]."""
    made = [sample_row(np.arange(len(q)), q, slots, int(draw)) for draw in draws]
    flat = {name: np.concatenate([row[name] for row in made]) for name in ("ids", "logprobs")}
    per_row = {name: np.array([row[name] for row in made], dtype=kind) for name, kind in ROW_TYPES.items()}
    return CachedDocument(np.arange(len(draws) + 1, dtype=np.int32), label_logprob=np.zeros(len(draws)), **per_row, **flat)


ROWS = {
    "flat, no certain entry": np.full(400, 1 / 400),
    "one entry": np.array([1.0]),
    "all certain, whole multiples": np.array([64, 32, 16, 8, 4, 2, 1, 1]) / 128,
    "all certain, none whole": np.array([0.61, 0.29, 0.1]),
    "all just c": np.full(128, 1 / 128),
    "certain and a long tail": np.concatenate([[0.4, 0.2, 0.1, 0.009, 0.008], np.full(500, (1 - 0.717) / 500)]),
    "a tail of less than c": np.concatenate([[0.5, 0.4969], np.full(31, 0.0001)]),
    "softmax of normals": np.exp(np.random.default_rng(0).normal(0, 2.5, 300)),
}


@pytest.mark.parametrize("slots", [2, 3, 128, 254])
@pytest.mark.parametrize("name", ROWS)
def test_the_mean_multiple_over_all_draws_is_the_probability(name, slots, monkeypatch):
    """The integral over the draw, not a simulation: each id's multiple is a step function of the draw, with two steps at most."""
    q, points = ROWS[name] / ROWS[name].sum(), 512
    grid = (2 * np.arange(points) + 1) * (1 << DRAW_BITS) // (2 * points)
    exact = samples(q, slots, grid)
    monkeypatch.setattr(quantizers, "row_draws", lambda _: grid)
    multiples = round_multiples(exact, 1 / slots)
    assert all(part.sum() == slots for part in rows_of(exact, multiples))
    mean = np.bincount(exact.ids, weights=multiples, minlength=len(q)) / points
    assert np.abs(mean - q * slots).max() <= 1 / points + 1e-4


@pytest.mark.parametrize("name", ROWS)
def test_multiples_at_the_ends_of_the_draw(name, monkeypatch):
    q, ends = ROWS[name] / ROWS[name].sum(), np.array([0, 1, (1 << DRAW_BITS) - 1])
    exact = samples(q, 128, ends)
    monkeypatch.setattr(quantizers, "row_draws", lambda _: ends)
    multiples = round_multiples(exact, 1 / 128)
    assert [part.sum() for part in rows_of(exact, multiples)] == [128] * 3
    assert np.abs(multiples - 128 * np.maximum(q[exact.ids], 1 / 128)).max() < 1 + 1e-4


@pytest.mark.parametrize("more", [-1, 1])
def test_a_draw_more_or_less_than_the_sums_say_still_sums_to_one(more):
    """The sampler's sums are float32's on another device; here they are float64's."""
    exact = sampled_document(np.random.default_rng(5), 50, 5000, 128)
    both = (exact.drawn > 1) & (exact.drawn < exact.counts)
    exact.drawn[both] = exact.drawn[both].astype(int) + more  # the border to the certain ones moves by an entry
    for part in rows_of(exact, round_multiples(exact, 1 / 128)):
        assert part.sum() == 128 and part.min() >= 0


def test_no_rows_no_codes():
    exact = sampled_document(np.random.default_rng(0), 0, 100, 128)
    assert len(round_multiples(exact, 1 / 128)) == len(round_square_root(exact)) == 0
