"""Draws belong to a document's tokens, a position and a purpose; they are uniform, independent, and never change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.logit_cache.draws import DRAW_BITS, Purpose, mix, row_draws, row_seeds

GREETING = np.array([9707, 11, 1879, 0, 151_643], dtype=np.int32)
GOLDEN_SAMPLE = [458234296409, 478059556087, 599119998411, 131859992824]
GOLDEN_ROUND = [138925672274, 340417603811, 674215836995, 927712574541]
BINS = 64


def test_golden_values():
    """Pinned when format 1 was made: a cache that is extended has to draw what it would have drawn then."""
    assert row_draws(GREETING).tolist() == GOLDEN_SAMPLE
    assert row_draws(GREETING, Purpose.ROUND).tolist() == GOLDEN_ROUND


def test_the_generator_is_splitmix64():
    """The five outputs for the seed 1234567 that implementations are compared on (Rosetta Code, Pseudo-random numbers/Splitmix64)."""
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert mix(states).tolist() == wanted


@given(st.lists(st.integers(0, 2**20 - 1), min_size=1, max_size=50))
def test_a_document_draws_the_same_wherever_its_tokens_come_from(ids):
    alone = np.array(ids, dtype=np.int32)
    inside_a_batch = np.array([[7] * len(ids), ids], dtype=np.int64).T[:, 1]  # another dtype and stride
    np.testing.assert_array_equal(row_draws(alone), row_draws(inside_a_batch))
    assert row_draws(alone).shape == (len(ids) - 1,)
    assert row_draws(alone).dtype == np.int64 and row_seeds(alone, Purpose.ROUND).dtype == np.uint64
    assert ((row_draws(alone) >= 0) & (row_draws(alone) < 1 << DRAW_BITS)).all()


def test_documents_of_one_token_draw_nothing():
    assert len(row_draws(np.array([5], dtype=np.int32))) == len(row_seeds(np.array([5], dtype=np.int32), Purpose.ROUND)) == 0


def chi_square(draws: np.ndarray) -> float:
    """Statistic of uniformity over 64 bins, 63 degrees of freedom: 0.1% of uniform draws are above 104."""
    seen = np.bincount(draws >> (DRAW_BITS - 6), minlength=BINS)
    expected = len(draws) / BINS
    return float(((seen - expected) ** 2 / expected).sum())


def pair_chi_square(one: np.ndarray, other: np.ndarray) -> float:
    """Statistic of joint uniformity over 8 x 8 bins, 63 degrees of freedom: sees a mean that is off and a dependence alike."""
    return chi_square((one >> (DRAW_BITS - 3) << (DRAW_BITS - 3)) | (other >> 3))


DOCUMENTS = [np.array([n, 17, n % 5], dtype=np.int32) for n in range(20_000)]
ALIKE = np.arange(20_001, dtype=np.int32) % 2
OF_MANY_POSITIONS = row_draws(ALIKE)
OF_MANY_DOCUMENTS = np.array([row_draws(ids)[0] for ids in DOCUMENTS])


@pytest.mark.parametrize("draws", [OF_MANY_POSITIONS, OF_MANY_DOCUMENTS, OF_MANY_POSITIONS << 20 & (1 << DRAW_BITS) - 1])
def test_uniform_over_positions_and_documents_and_in_the_low_bits(draws):
    assert 25 < chi_square(draws) < 115


@pytest.mark.parametrize(
    "one, other",
    [
        (OF_MANY_POSITIONS[:-1], OF_MANY_POSITIONS[1:]),
        (OF_MANY_DOCUMENTS[:-1], OF_MANY_DOCUMENTS[1:]),
        (OF_MANY_POSITIONS, row_draws(ALIKE, Purpose.ROUND)),
        (OF_MANY_POSITIONS, row_draws(1 - ALIKE)),
        (OF_MANY_POSITIONS[:-1], row_draws(ALIKE[:-1])),
    ],
    ids=["next position", "next document", "other purpose", "other document", "document that goes on"],
)
def test_independent(one, other):
    assert 25 < pair_chi_square(one, other) < 115


def test_the_checks_see_what_is_not_random():
    assert chi_square(OF_MANY_POSITIONS // 8 * 7) > 1000
    assert pair_chi_square(OF_MANY_POSITIONS, OF_MANY_POSITIONS) > 1000
