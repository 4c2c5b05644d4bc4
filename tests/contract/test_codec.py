"""What the codec keeps: every id, every count, the order of entries, the mass of a row; and what float16 costs (field cases 10, 15)."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract.logit_cache import codec
from pipeline.contract.logit_cache.schema import DOCUMENT_SCHEMA, CachedDocument

QWEN3_VOCAB = 151_936
FLOAT16_RELATIVE = 2.0**-11


def document(counts: list[int], rng: np.random.Generator, *, vocab: int = 2**20, log10_tail: tuple[float, float] = (-12, -0.01)):
    """A document of T = len(counts) + 1 tokens whose rows are distributions: entries fall, entries and tail sum to 1."""
    rows, entries = len(counts), sum(counts)
    tail = 10 ** rng.uniform(*log10_tail, rows)
    tail[np.array(counts, dtype=int) == 0] = 1.0
    parts = [_row(count, 1 - mass, rng) for count, mass in zip(counts, tail, strict=True)]
    return CachedDocument(
        token_ids=rng.integers(0, vocab, rows + 1).astype(np.int32),
        counts=np.array(counts, dtype=np.uint8),
        tail_logprob=np.log(tail).astype(np.float32),
        label_logprob=-rng.exponential(3, rows).astype(np.float32),
        ids=rng.integers(0, vocab, entries).astype(np.int32),
        logprobs=np.concatenate([np.zeros(0), *parts]).astype(np.float32),
    )


def _row(count: int, mass: float, rng: np.random.Generator) -> np.ndarray:
    scores = np.sort(rng.normal(0, 3, count))[::-1]
    return scores - np.logaddexp.reduce(scores) + np.log(mass) if count else scores


def round_trip(documents: list[CachedDocument], first: int = 0) -> list[CachedDocument]:
    batch = codec.encode(documents, first)
    batch.validate(full=True)
    assert batch.schema == DOCUMENT_SCHEMA
    assert batch["document"].to_pylist() == list(range(first, first + len(documents)))
    assert batch["input_tokens"].to_pylist() == [len(part.token_ids) for part in documents]
    return [codec.decode(batch, row) for row in range(batch.num_rows)]


def row_sums(part: CachedDocument) -> np.ndarray:
    """[T-1] float64 sums of the kept probabilities."""
    return np.array([np.exp(part.row(t)[1].astype(np.float64)).sum() for t in range(part.tokens)])


counts_of_documents = st.lists(st.lists(st.integers(0, 255), max_size=6), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(counts_of_documents, st.integers(0, 2**32 - 1), st.integers(0, 2**40))
def test_any_documents_come_back(counts, seed, first):
    rng = np.random.default_rng(seed)
    written = [document(part, rng) for part in counts]
    for exact, back in zip(written, round_trip(written, first), strict=True):
        for name in ("token_ids", "counts", "tail_logprob", "label_logprob", "ids"):
            assert getattr(back, name).dtype == getattr(exact, name).dtype
            np.testing.assert_array_equal(getattr(back, name), getattr(exact, name), err_msg=name)
        assert back.logprobs.dtype == np.float32
        assert back.tokens == exact.tokens == len(exact.counts)


@settings(max_examples=60, deadline=None)
@given(counts_of_documents, st.integers(0, 2**32 - 1))
def test_order_is_kept_and_float16_costs_no_more_than_its_rounding(counts, seed):
    written = [document(part, np.random.default_rng(seed)) for part in counts]
    for exact, back in zip(written, round_trip(written), strict=True):
        for t in range(exact.tokens):
            given_logprobs, restored = exact.row(t)[1].astype(np.float64), back.row(t)[1].astype(np.float64)
            assert (np.diff(restored) <= 1e-6).all()
            rounding = FLOAT16_RELATIVE * np.abs(given_logprobs) + 2**-25
            shift = rounding.max(initial=0) + 1e-5  # the rows' rescaling is a mean of the entries' errors
            assert (np.abs(restored - given_logprobs) <= rounding + shift).all()


def test_float16_is_relative_2_to_the_minus_11_before_the_mass_is_restored():
    logprobs = -np.geomspace(1e-3, 100, 255).astype(np.float32)
    part = CachedDocument(*(np.zeros(n, t) for n, t in ((2, np.int32), (1, np.uint8), (1, np.float32), (1, np.float32))), None, logprobs)
    part.counts[0] = 255
    batch = codec.encode([CachedDocument(part.token_ids, part.counts, part.tail_logprob, part.label_logprob, part.token_ids, logprobs)], 0)
    stored = batch["logprobs"].values.to_numpy().astype(np.float64)
    assert (np.abs(stored - logprobs) <= FLOAT16_RELATIVE * np.abs(logprobs)).all()


def test_every_id_of_qwen3_round_trips():
    ids = np.arange(QWEN3_VOCAB, dtype=np.int32)
    counts = [128] * (QWEN3_VOCAB // 128)
    exact = document(counts, np.random.default_rng(0))
    exact.ids[:] = ids
    (back,) = round_trip([exact])
    np.testing.assert_array_equal(back.ids, ids)
    assert back.ids[-1] == 151_935
    assert back.row(len(counts) - 1)[0][-1] == 151_935


@pytest.mark.parametrize("bits", [17, 18, 20])
def test_ids_beyond_a_power_of_two_do_not_alias(bits):
    exact = document([3], np.random.default_rng(0))
    exact.ids[:] = [2**bits - 1, 0, 2 ** (bits - 1)]
    exact.token_ids[:] = [2**bits - 1, 2 ** (bits - 1)]
    (back,) = round_trip([exact])
    assert back.ids.tolist() == [2**bits - 1, 0, 2 ** (bits - 1)]
    assert back.token_ids.tolist() == exact.token_ids.tolist()


@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-6, 1e-3, 0.1, 0.5, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-7])
@pytest.mark.parametrize("count", [1, 64, 255])
def test_kept_and_tail_mass_sum_to_one(tail, count):
    rng = np.random.default_rng(count)
    exact = document([count] * 5, rng)
    exact.tail_logprob[:] = np.log(tail)
    exact.logprobs[:] = np.concatenate([_row(count, 1 - tail, rng) for _ in range(5)])
    (back,) = round_trip([exact])
    recorded = -np.expm1(exact.tail_logprob.astype(np.float64))
    np.testing.assert_allclose(row_sums(back), recorded, rtol=1e-6, atol=0)
    np.testing.assert_allclose(row_sums(back) + np.exp(exact.tail_logprob.astype(np.float64)), 1, rtol=0, atol=1e-6)


def test_a_row_that_keeps_everything_sums_to_one():
    exact = document([8, 0, 8], np.random.default_rng(1))
    exact.tail_logprob[:] = [-np.inf, 0, -np.inf]
    (back,) = round_trip([exact])
    np.testing.assert_allclose(row_sums(back), [1, 0, 1], atol=1e-6)
    assert np.isfinite(back.logprobs).all()


def test_rows_without_entries_between_rows_with_some():
    exact = document([0, 2, 0, 0, 255, 1, 0], np.random.default_rng(2))
    (back,) = round_trip([exact])
    assert [len(back.row(t)[0]) for t in range(7)] == [0, 2, 0, 0, 255, 1, 0]
    np.testing.assert_array_equal(back.row(4)[0], exact.ids[2:257])
    np.testing.assert_array_equal(back.row(5)[0], exact.ids[257:])
    filled = [1, 4, 5]
    np.testing.assert_allclose(row_sums(back)[filled], 1 - np.exp(exact.tail_logprob[filled].astype(np.float64)), atol=1e-6)


def test_the_tail_that_float32_calls_one_leaves_finite_logprobs():
    exact = document([4], np.random.default_rng(3))
    exact.tail_logprob[:] = 0.0
    (back,) = round_trip([exact])
    assert np.isfinite(back.logprobs).all()
    assert 0 < row_sums(back)[0] < 1e-6


@settings(max_examples=200, deadline=None)
@given(st.floats(-100, -1e-7))
def test_log_complement_against_120_digits(logprob):
    got = float(codec.log_complement(np.array([logprob]))[0])
    with mpmath.workdps(120):
        wanted = mpmath.log(1 - mpmath.exp(mpmath.mpf(logprob)))
        assert abs((mpmath.mpf(got) - wanted) / wanted) < 1e-14


def test_log_complement_at_its_ends():
    smallest = float(np.finfo(np.float32).epsneg)
    none, all_of_it = codec.log_complement(np.array([-np.inf, 0.0]))
    assert none == 0
    assert all_of_it == pytest.approx(np.log(smallest), rel=1e-9)
