"""The mass of a row is the recorded one, whatever was dropped and however values were rounded; nothing is ever 1 - sum(p)."""

import warnings

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import falling_logprobs, kept_document, rows_of, sampled_document
from stored import CODECS, codec, through_file

from pipeline.contract.logit_cache.columns import tail_name
from pipeline.contract.logit_cache.masses import kept_mass
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets

COMPACT = ("ranks", "streams", "clusters")
VOCAB = 5000
SMALLEST = float(np.finfo(np.float32).epsneg)


def one_row(logprobs, tail_logprob, other_tails=None) -> CachedDocument:
    n = len(logprobs)
    tails = {tau: np.array([tail], dtype=np.float32) for tau, tail in (other_tails or {}).items()}
    return CachedDocument(
        token_ids=np.array([1, 2], dtype=np.int32),
        counts=np.array([n], dtype=np.uint8),
        tail_logprob=np.array([tail_logprob], dtype=np.float32),
        label_logprob=np.array([-1], dtype=np.float32),
        ids=np.arange(n, dtype=np.int32) * 7,
        logprobs=np.array(logprobs, dtype=np.float32),
        other_tails=tails,
    )


def read(name, targets, document, temperature=1.0):
    """The rows as a reader has them, and the recorded tail's logprobs as float64."""
    made = codec(name, targets, VOCAB)
    columns = through_file(made, [document])
    return read_rows(made, columns, 0, temperature), columns.part(tail_name(temperature), 0).astype(np.float64)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-7])
def test_kept_and_tail_mass_sum_to_one(name, tail):
    rng = np.random.default_rng(0)
    for count in (1, 64, 255):
        exact = one_row(falling_logprobs(rng, count, 1 - tail), np.log1p(tail - 1))
        back, recorded = read(name, Targets(k=255), exact)
        kept = back.weights.sum(dtype=np.float64)
        np.testing.assert_allclose(kept + np.exp(recorded), [1], atol=2e-6)
        if back.counts[0]:
            np.testing.assert_allclose([kept], np.maximum(-np.expm1(recorded), SMALLEST), rtol=1e-5)


@pytest.mark.parametrize("name", ["raw", "plain"])
def test_plain_tails_are_float32_and_untouched(name):
    exact = kept_document(np.random.default_rng(1), [0, 3, 255, 64], VOCAB, [2.0])
    made = codec(name, Targets(temperatures=[2.0]), VOCAB)
    columns = through_file(made, [exact])
    np.testing.assert_array_equal(columns.part("tail_logprob", 0), exact.tail_logprob)
    np.testing.assert_array_equal(columns.part("tail_logprob_2", 0), exact.other_tails[2.0])


@pytest.mark.parametrize("temperatures", [[1.0], [0.5, 2.0, 4.0]])
@pytest.mark.parametrize("name", COMPACT)
@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 255), max_size=5), seed=st.integers(0, 2**32 - 1))
def test_what_is_dropped_joins_the_tail_at_every_temperature(name, temperatures, counts, seed):
    targets = Targets(k=255, temperatures=temperatures)
    exact = kept_document(np.random.default_rng(seed), counts, VOCAB, targets.other_temperatures)
    made = codec(name, targets, VOCAB)
    columns = through_file(made, [exact])
    has_code = made.quantizer.encode(exact.logprobs) >= 0
    assert made.counts(columns).tolist() == [int(part.sum()) for part in rows_of(exact, has_code)]
    for tau, tails in {1.0: exact.tail_logprob, **exact.other_tails}.items():
        rows = zip(tails.tolist(), rows_of(exact, exact.logprobs), rows_of(exact, has_code))
        wanted = [float(tail_with_dropped(tail, logprobs, codes, tau)) for tail, logprobs, codes in rows]
        np.testing.assert_allclose(columns.part(tail_name(tau), 0).astype(float), wanted, rtol=2.0**-11, atol=2e-6)


def tail_with_dropped(tail_logprob, logprobs, has_code, tau):
    """Entries share what the tail leaves in proportion to q^(1/tau); 50 digits."""
    with mpmath.workdps(50):
        values = [mpmath.exp(mpmath.mpf(float(value)) / tau) for value in logprobs]
        dropped = mpmath.fsum(value for value, code in zip(values, has_code) if not code)
        tail = mpmath.exp(mpmath.mpf(tail_logprob))
        return mpmath.log(tail + (1 - tail) * dropped / mpmath.fsum(values)) if dropped else mpmath.mpf(tail_logprob)


@pytest.mark.parametrize("name", COMPACT)
def test_an_entry_at_the_end_of_each_quantizer(name):
    """Square-root codes reach 0.25 / 255^2 = 3.84e-6, logarithmic ones 255.5 / 16 nats = 1.16e-7."""
    for temperatures, smallest in (([1.0], 0.25 / 255**2), ([1.0, 2.0], np.exp(-255.5 / 16))):
        targets = Targets(temperatures=temperatures)
        others = dict.fromkeys(targets.other_temperatures, -np.inf)
        for factor, count in ((1.01, 2), (0.99, 1)):
            q = smallest * factor
            back, recorded = read(name, targets, one_row(np.log([1 - q, q]), -np.inf, others))
            assert back.counts.tolist() == [count]
            assert recorded[0] == (-np.inf if count == 2 else pytest.approx(np.log(q), rel=2.0**-11))


@pytest.mark.parametrize("name", COMPACT)
def test_a_row_whose_entries_are_all_dropped_is_all_tail(name):
    back, recorded = read(name, Targets(), one_row(np.full(9, np.log(1e-6)), np.log1p(-9e-6)))
    assert back.counts.tolist() == [0] and back.ids.shape == back.weights.shape == (1, 0)
    assert recorded.tolist() == [0] and back.tail_mass.tolist() == [1]


@pytest.mark.parametrize("name", CODECS)
def test_a_row_that_keeps_everything_sums_to_one(name):
    exact = kept_document(np.random.default_rng(1), [8, 0, 8], VOCAB)
    exact.tail_logprob[:] = [-np.inf, 0, -np.inf]
    exact.logprobs[:] = np.tile(np.log(np.arange(8, 0, -1) / 36), 2)
    back, _ = read(name, Targets(), exact)
    np.testing.assert_allclose(back.weights.sum(1), [1, 0, 1], atol=1e-6)
    assert back.tail_mass.tolist() == [0, 1, 0]


@pytest.mark.parametrize("name", CODECS)
def test_the_tail_that_float32_calls_one_leaves_weights_above_zero(name):
    back, _ = read(name, Targets(), one_row(np.full(4, np.log(1e-5)), 0.0))
    assert back.weights.min() > 0
    assert back.weights.sum(dtype=float) == pytest.approx(SMALLEST, rel=1e-5)


@pytest.mark.parametrize("temperatures", [[1.0], [1.0, 0.5]])
@pytest.mark.parametrize("name", CODECS)
def test_ids_that_a_teacher_masks_cost_nothing(name, temperatures):
    """Probability 0, as `targets.NEVER` gives it, is a weight of 0 or no entry at all, and no warning."""
    targets = Targets(temperatures=temperatures)
    exact = one_row([np.log(0.75), np.log(0.25), -1e30, -1e30], -1e30, dict.fromkeys(targets.other_temperatures, -2e30))
    exact.label_logprob[:] = -1e30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for tau in temperatures:
            back, recorded = read(name, targets, exact, tau)
            first = 0.75 ** (1 / tau) / (0.75 ** (1 / tau) + 0.25 ** (1 / tau))
            weights = dict(zip(back.ids[0].tolist(), back.weights[0].tolist()))
            assert weights[0] == pytest.approx(first, rel=0.01 if name in COMPACT else 2e-3)
            assert sum(weights.values()) == pytest.approx(1, abs=1e-6)
            assert weights.get(14, 0.0) == weights.get(21, 0.0) == back.tail_mass[0] == np.exp(recorded[0]) == 0


@pytest.mark.parametrize("name", ["raw", "plain", "ranks"])
def test_a_sample_keeps_its_certain_mass(name):
    exact = sampled_document(np.random.default_rng(4), 40, VOCAB, 128)
    back, recorded = read(name, Targets(mode="sampled"), exact)
    for t, ids in enumerate(rows_of(exact, exact.ids)):
        certain = np.isin(back.ids[t, : back.counts[t]], ids[: len(ids) - int(exact.drawn[t])])
        wanted = max(-np.expm1(recorded[t]), SMALLEST) if certain.any() else 0
        assert back.weights[t, : back.counts[t]][certain].sum(dtype=float) == pytest.approx(wanted, rel=1e-5)


@settings(max_examples=200, deadline=None)
@given(st.floats(-100, -1e-7))
def test_kept_mass_against_120_digits(logprob):
    got = float(kept_mass(np.array([logprob]))[0])
    with mpmath.workdps(120):
        wanted = 1 - mpmath.exp(mpmath.mpf(logprob))
        assert abs((mpmath.mpf(got) - wanted) / wanted) < 1e-14


def test_kept_mass_at_its_ends():
    assert kept_mass(np.array([-np.inf, 0.0, 1e-6], dtype=np.float32)).tolist() == [1, SMALLEST, SMALLEST]
