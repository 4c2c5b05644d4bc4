"""The learning rate is a function of (step in the phase, settings): warm-up, peak, cosine, minimum (field cases 37, 38)."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.schedule import learning_rate, warmup_steps
from stage2_student.curriculum import phases

PAPER = StudentManifest()
PEAK, LOW = PAPER.learning_rate, PAPER.learning_rate_min


def settings(**changes) -> StudentManifest:
    return StudentManifest.model_validate(changes)


def trace(chosen: StudentManifest) -> list[float]:
    return [learning_rate(step, chosen) for step in range(chosen.steps)]


def test_the_papers_phase():
    assert (PAPER.steps, PEAK, LOW) == (50_000, 1e-4, 1e-6)
    assert warmup_steps(PAPER) == 750
    assert learning_rate(0, PAPER) == pytest.approx(PEAK / 750)
    assert learning_rate(374, PAPER) == pytest.approx(PEAK / 2)
    assert learning_rate(749, PAPER) == PEAK
    assert learning_rate(750 + 24_624, PAPER) == pytest.approx((PEAK + LOW) / 2)  # half of the cosine's 49,250 updates
    assert learning_rate(49_999, PAPER) == pytest.approx(LOW, rel=1e-12)


def test_the_cosine_written_out():
    for step in (750, 10_000, 33_333):
        progress = (step - 749) / 49_250
        assert learning_rate(step, PAPER) == pytest.approx(LOW + (PEAK - LOW) * (1 + math.cos(math.pi * progress)) / 2, rel=1e-12)


@pytest.mark.parametrize(("steps", "ratio", "expected"), [(1, 0.015, 1), (10, 0.0, 1), (66, 0.015, 1), (100, 0.015, 2), (200, 0.5, 100)])
def test_warm_up_is_at_least_one_step(steps, ratio, expected):
    assert warmup_steps(settings(steps=steps, warmup_ratio=ratio)) == expected


@given(steps=st.integers(2, 400), ratio=st.floats(0, 0.9), peak=st.floats(1e-6, 1.0), low=st.floats(0, 1e-6))
def test_parts_are_monotone_the_peak_is_reached_and_the_end_is_the_minimum(steps, ratio, peak, low):
    chosen = settings(steps=steps, warmup_ratio=ratio, learning_rate=peak, learning_rate_min=low)
    rates, warm = trace(chosen), warmup_steps(chosen)
    assert all(rate > 0 for rate in rates[:warm]) and max(rates) == rates[warm - 1] == peak
    assert all(a < b for a, b in pairwise(rates[:warm]))
    assert all(a >= b for a, b in pairwise(rates[warm - 1 :]))
    if warm < steps:
        assert rates[-1] == pytest.approx(low, abs=1e-12 * peak)


def test_nothing_else_enters():
    """Not the batch, the ranks, the curriculum or the seed."""
    plain = trace(settings(steps=40))
    others = {"global_batch_size": 7, "micro_batch_tokens": 99, "curriculum": "grow", "seed": 1, "zero": 2, "norm": "post"}
    assert trace(settings(steps=40, **others)) == plain
    assert [learning_rate(step, settings(steps=40)) for step in (39, 3, 39, 0)] == [plain[39], plain[3], plain[39], plain[0]]


def test_it_restarts_with_each_phase():
    chosen = settings(steps=40, curriculum="grow")
    starts = [(phase.first_step, learning_rate(0, chosen)) for phase in phases(chosen)]
    assert starts == [(0, PEAK), (40, PEAK), (80, PEAK)]  # one warm-up step
