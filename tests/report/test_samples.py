"""A mean over a few seeds: interval, power and pairing, against scipy and against draws."""

import math

import numpy as np
import pytest

from pipeline.report.samples import Sample, paired
from pipeline.report.t_distribution import critical_t, resolvable, t_cdf

WORKED = {42: 0.10, 43: 0.13, 44: 0.16}  # mean 0.13, deviation 0.03; t(2) at 97.5% is 4.302653


def test_quantiles_are_those_of_the_tables():
    """To the digits that are printed everywhere."""
    tables = {1: 12.7062047, 2: 4.3026527, 3: 3.1824463, 4: 2.7764451, 10: 2.2281389, 30: 2.0422725}
    assert {df: critical_t(df) for df in tables} == {df: pytest.approx(value, abs=5e-8) for df, value in tables.items()}
    assert critical_t(5, 0.9) == pytest.approx(2.0150484, abs=5e-8)


def test_the_distribution_is_scipys():
    stats = pytest.importorskip("scipy.stats")
    for df in (1, 2, 3, 4, 7, 30):
        for t in (-40.0, -1.0, 0.0, 0.3, 2.0, 9.0):
            assert t_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-14)
        assert critical_t(df) == pytest.approx(stats.t.ppf(0.975, df), rel=1e-12)


@pytest.mark.parametrize("df", [1, 2, 5])
def test_the_smallest_effect_is_found_in_four_of_five_draws(df):
    """By its definition: experiments of df + 1 seeds around that effect, each tested."""
    n, draws = df + 1, 100_000
    drawn = np.random.default_rng(df).normal(resolvable(df) / math.sqrt(n), 1, (draws, n))
    found = np.mean(drawn.mean(1) / (drawn.std(1, ddof=1) / math.sqrt(n)) > critical_t(df))
    assert found == pytest.approx(0.8, abs=4 * math.sqrt(0.16 / draws))


def test_an_interval_worked_by_hand():
    sample = Sample(WORKED)
    half = 4.3026527 * 0.03 / math.sqrt(3)
    assert (sample.value, sample.deviation, sample.n) == (pytest.approx(0.13), pytest.approx(0.03), 3)
    assert sample.interval == pytest.approx((0.13 - half, 0.13 + half)) and sample.sign == "positive"
    assert sample.resolvable == pytest.approx(5.6534892 * 0.03 / math.sqrt(3))
    assert Sample({seed: value - 0.13 for seed, value in WORKED.items()}).sign == "not resolved"
    assert Sample({seed: -value for seed, value in WORKED.items()}).sign == "negative"


@pytest.mark.parametrize(
    ("sample", "why"),
    [
        (Sample({42: 1.0}), "one seed"),
        (Sample({42: 1.0, 43: 1.0 + 1e-12}), "no spread"),
        (Sample({}, "unfinished"), "unfinished"),
    ],
)
def test_noise_that_is_not_known_is_no_number(sample, why):
    assert sample.no_noise == why and (sample.deviation, sample.interval, sample.resolvable, sample.sign) == (None,) * 4


def test_what_a_seed_brings_to_every_cell_cancels():
    luck = {42: 0.0, 43: 5.0, 44: -3.0}
    cells = [Sample({seed: luck[seed] + base + WORKED[seed] * factor for seed in luck}) for base, factor in ((2, 1), (3, 0))]
    found = paired([(1, cells[0]), (-1, cells[1])])
    assert found.by_seed == {seed: pytest.approx(WORKED[seed] - 1) for seed in luck}
    assert found.deviation == pytest.approx(0.03)


@pytest.mark.parametrize(
    ("cells", "gap"),
    [
        ([Sample({1: 1.0}), Sample({}, "unfinished")], "needs both"),
        ([Sample({1: 1.0})] * 3 + [Sample({}, "no run")], "needs all 4"),
        ([Sample({1: 1.0}), Sample({2: 1.0})], "no seed in common"),
        ([Sample({1: 1.0}, inputs={"teachers": "a"}), Sample({1: 1.0}, inputs={"teachers": "b"})], "different teachers"),
    ],
)
def test_what_is_no_pair_is_a_gap(cells, gap):
    assert paired([(1, cell) for cell in cells]).shown == gap


def test_seeds_that_only_one_cell_holds_stay_out_and_what_is_not_recorded_differs_from_nothing():
    left = Sample({1: 4.0, 2: 9.0}, inputs={"teachers": "a"})
    assert paired([(1, left), (-1, Sample({1: 1.0, 3: 7.0}, inputs={"teachers": None}))]).by_seed == {1: 3.0}
