"""Moments against closed forms and scipy, where naive sums fail; standard errors; histograms that lose nothing."""

import numpy as np
import pytest
from scipy import stats

from stage2_student.diagnostics.moments import BINS, QUANTILES, histogram, moments, quantiles
from stage2_student.diagnostics.values import mean_with_errors

RANDOM = np.random.Generator(np.random.PCG64(0))
SAMPLES = {
    "normal": RANDOM.normal(size=5000),
    "exponential": RANDOM.exponential(size=5000),
    "heavy": RANDOM.standard_t(3, size=5000),
    "two values": np.repeat([1.0, 2.0], [30, 970]),
}


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("offset", [0.0, 1e3, 1e6])
def test_moments_are_scipys_at_any_offset(name, offset):
    values = SAMPLES[name] + offset
    found = moments(values)
    assert found["mean"] == pytest.approx(values.mean(), rel=1e-12)
    assert found["std"] == pytest.approx(SAMPLES[name].std(), rel=1e-8)
    assert found["kurtosis"] == pytest.approx(stats.kurtosis(SAMPLES[name], fisher=False), rel=1e-8)
    assert found["effective_outliers"] == pytest.approx(len(values) / (stats.kurtosis(values, fisher=False) + 3), rel=1e-6)


def raw_kurtosis(values: np.ndarray) -> float:
    """From sums of raw powers: right on paper."""
    m1, m2, m3, m4 = (np.mean(values**k) for k in (1, 2, 3, 4))
    return float((m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4) / (m2 - m1**2) ** 2)


@pytest.mark.parametrize(("dtype", "offset"), [(np.float32, 30.0), (np.float64, 3e4)])
def test_sums_without_a_shift_would_fail_where_these_hold(dtype, offset):
    values = (SAMPLES["normal"] + offset).astype(dtype)
    expected = stats.kurtosis(values.astype(np.float64) - offset, fisher=False)
    assert abs(raw_kurtosis(values) - expected) > 0.05
    assert moments(values)["kurtosis"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("size", [2.0, 100.0, 1e6])
@pytest.mark.parametrize("n", [100, 4096])
def test_one_outlier_among_n_has_kurtosis_n_minus_2_whatever_its_size(n, size):
    values = np.ones(n)
    values[7] = size
    found = moments(values)
    assert found["kurtosis"] == pytest.approx(n - 2 + 1 / (n - 1), rel=1e-6)
    assert found["effective_outliers"] == pytest.approx(1, abs=0.02)


def test_what_has_no_moment_says_why():
    assert moments(np.ones(5)) == {"n": 5, "mean": 1.0, "std": 0.0, "kurtosis": "no spread", "effective_outliers": "no spread"}
    assert moments(np.empty(0))["mean"] == "no tokens"
    for bad in (np.nan, np.inf):
        assert set(moments(np.array([1.0, bad])).values()) == {2, "not finite"}
        assert set(quantiles(np.array([1.0, bad])).values()) == {"not finite"}
        assert histogram(np.array([1.0, bad])) == {"edges": [], "counts": [], "missing": "not finite"}


def test_quantiles_interpolate():
    found = quantiles(np.arange(1001.0))
    assert found == pytest.approx({f"{q:g}": 1000 * q for q in QUANTILES})


@pytest.mark.parametrize("values", [np.geomspace(0.1, 1000, 777), np.array([2.0, 2.0, 2.0]), np.array([0.0, 1.0, 3.0]), np.array([7.0])])
def test_every_value_is_in_a_bin(values):
    found = histogram(values)
    edges = np.array(found["edges"])
    assert sum(found["counts"]) == len(values) and len(edges) == len(found["counts"]) + 1
    assert (edges[0], edges[-1]) == (values.min(), values.max())


def test_bins_are_of_equal_ratio_so_that_an_outlier_does_not_flatten_the_rest():
    edges = np.array(histogram(np.array([1.0, 2.0, 500.0]))["edges"])
    assert len(edges) == BINS + 1 and np.allclose(edges[1:] / edges[:-1], 500 ** (1 / BINS))


# --- standard errors ---


def test_errors_of_independent_tokens_are_scipys():
    values, alone = RANDOM.normal(size=200), np.arange(200)
    found = mean_with_errors(values, alone)
    assert found["mean"] == pytest.approx(values.mean())
    assert found["standard_error"] == pytest.approx(stats.sem(values)) == pytest.approx(found["standard_error_documents"])


def test_tokens_that_repeat_their_document_count_once():
    per_document = RANDOM.normal(size=30)
    found = mean_with_errors(np.repeat(per_document, 40), np.repeat(np.arange(30), 40))
    assert found["standard_error_documents"] == pytest.approx(stats.sem(per_document))
    assert found["standard_error"] < found["standard_error_documents"] / 5
    assert (found["n"], found["documents"]) == (1200, 30)


def test_errors_that_cannot_be_had_say_why():
    assert mean_with_errors(np.array([1.0, 2.0]), np.array([4, 4]))["standard_error_documents"] == "one document"
    assert mean_with_errors(np.array([1.0]), np.array([4]))["standard_error"] == "one token"
    assert mean_with_errors(np.empty(0), np.empty(0))["mean"] == "no tokens"
    assert mean_with_errors(np.array([1.0, np.nan]), np.array([0, 1]))["mean"] == "not finite"
