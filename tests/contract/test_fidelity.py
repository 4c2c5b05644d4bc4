"""What keeping and coding are said to cost, against sums over the whole vocabulary in float64 (field case 14)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import keep_sampled, kept_document, rows_of, sampled_document
from stored import CODECS, codec, through_file

from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.logit_cache.fidelity import BAND_EDGES, BINS, Band, Measured, merge, quantile, summarize
from pipeline.contract.logit_cache.masses import at_temperature
from pipeline.contract.logit_cache.measure import measure, row_kl, sample_errors
from pipeline.contract.logit_cache.padded import Rows, read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets

VOCAB, COMPACT = 600, ("ranks", "clusters")


def restored(name: str, targets: Targets, exact: CachedDocument) -> Rows:
    made = codec(name, targets, VOCAB)
    return read_rows(made, through_file(made, [exact]), 0)


def dense_kl(exact: CachedDocument, rows: Rows) -> np.ndarray:
    """Outcomes are the ids that came back and everything else; both sides divided by their sums."""
    found = []
    for t, (ids, logprobs) in enumerate(zip(rows_of(exact, exact.ids), rows_of(exact, exact.logprobs))):
        p, w = np.zeros(VOCAB + 1), np.zeros(VOCAB + 1)
        count = int(rows.counts[t])
        back = rows.ids[t, :count]
        p[ids], p[VOCAB] = np.exp(logprobs.astype(float)), np.exp(float(exact.tail_logprob[t]))
        w[back], w[VOCAB] = rows.weights[t, :count], rows.tail_mass[t]
        dropped = np.setdiff1d(ids, back)
        p[VOCAB] += p[dropped].sum()
        p[dropped] = 0
        p, w = p / p.sum(), w / w.sum()
        both = p > 0
        found.append((p[both] * np.log(p[both] / w[both])).sum())
    return np.array(found)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25, deadline=None)
@given(counts=st.lists(st.integers(0, 255), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_kl_is_the_dense_one(name, counts, seed):
    exact = kept_document(np.random.default_rng(seed), counts, VOCAB)
    rows = restored(name, Targets(k=255), exact)
    kl = row_kl(exact, rows.ids, rows.weights, rows.tail_mass)
    np.testing.assert_allclose(kl, dense_kl(exact, rows), rtol=1e-3, atol=1e-9)
    assert (kl > -1e-15).all()


@pytest.mark.parametrize("name", CODECS)
def test_kl_at_another_temperature_is_the_dense_one(name):
    """The kept entries there are q^(1/tau) scaled to what the recorded tail leaves, on both sides."""
    exact = kept_document(np.random.default_rng(4), [64, 3, 1, 255], VOCAB, [2.0])
    made = codec(name, Targets(k=255, temperatures=[1.0, 2.0]), VOCAB)
    back = read_rows(made, through_file(made, [exact]), 0, 2.0)
    there = at_temperature(exact, 2.0)
    for logprobs, sharp, tail in zip(rows_of(exact, there.logprobs), rows_of(exact, exact.logprobs), exact.other_tails[2.0], strict=True):
        flat = np.exp(sharp.astype(float) / 2)
        np.testing.assert_allclose(np.exp(logprobs), flat / flat.sum() * (1 - np.exp(float(tail))), rtol=1e-5)
    kl = measure(there, back, None).error
    np.testing.assert_allclose(kl, dense_kl(there, back), rtol=1e-3, atol=1e-9)
    assert 0 < kl[0] < 0.01


def test_kl_of_equal_rows_is_zero_whatever_the_rounding_of_their_sum():
    """Scores are float32, and sum to 1 within 1e-6; what is restored from them sums to 1."""
    exact = kept_document(np.random.default_rng(0), [64, 255, 3, 1], VOCAB)
    exact.tail_logprob[:] = np.log(0.3)
    exact.logprobs[:] = np.concatenate([part - np.logaddexp.reduce(part) + np.log(0.7) for part in rows_of(exact, exact.logprobs)])
    exact.logprobs[:] += 1e-6
    rows = restored("raw", Targets(), exact)
    weights = np.zeros_like(rows.weights)
    for t, logprobs in enumerate(rows_of(exact, exact.logprobs)):
        weights[t, : len(logprobs)] = np.exp(logprobs - 1e-6)
    kl = row_kl(exact, rows.ids, weights, rows.tail_mass)
    assert (np.abs(kl) < 1e-11).all()


def test_kl_finds_entries_whatever_their_order_and_the_free_slots():
    """Free slots hold id 0 and weight 0, beside an entry of id 0."""
    flat = np.log(np.array([0.5, 0.25, 0.125], dtype=np.float32))
    exact = CachedDocument(np.zeros(2, "i4"), np.array([3], "u1"), np.log([0.125]), np.zeros(1), np.array([0, 9, 4], "i4"), flat)
    ids, weights = np.array([[9, 0, 4, 0, 0]], dtype=np.int32), np.array([[0.25, 0.5, 0.125, 0, 0]])
    assert row_kl(exact, ids, weights, np.array([0.125]))[0] == pytest.approx(0, abs=1e-7)
    assert row_kl(exact, ids, weights[:, [1, 0, 2, 3, 4]], np.array([0.125]))[0] == pytest.approx(0.25 * np.log(2), rel=1e-6)


@pytest.mark.parametrize("name", COMPACT)
def test_a_byte_costs_what_the_design_says(name):
    """Square-root codes: the mean square of an entry's error is 1 / (12 x 255^2) in the root, and KL twice that, times 64 entries."""
    exact = kept_document(np.random.default_rng(1), [64] * 200, VOCAB)
    rows = restored(name, Targets(), exact)
    assert 0 < row_kl(exact, rows.ids, rows.weights, rows.tail_mass).mean() < 2 * 64 / (12 * 255**2)


def dense_rows(vocab: int = VOCAB) -> np.ndarray:
    """[400, vocab] copies of one distribution with a heavy head."""
    scores = np.random.default_rng(3).normal(0, 2.5, vocab)
    return np.tile(np.exp(scores - np.logaddexp.reduce(scores)), (400, 1))


def sample_of(q: np.ndarray, c: float) -> CachedDocument:
    """The rows q [R, V] sampled with their document's own draws."""
    token_ids = np.arange(len(q) + 1, dtype=np.int32)
    kept = [keep_sampled(row, c, int(draw)) for row, draw in zip(q, row_draws(token_ids))]
    tails = [np.delete(row, certain) for row, (certain, _) in zip(q, kept)]
    return CachedDocument(
        token_ids=token_ids,
        counts=np.array([len(certain) + len(drawn) for certain, drawn in kept], dtype=np.uint8),
        tail_logprob=np.log([tail.sum() for tail in tails]).astype(np.float32),
        label_logprob=np.zeros(len(q), dtype=np.float32),
        ids=np.concatenate([np.concatenate(pair) for pair in kept]).astype(np.int32),
        logprobs=np.concatenate([np.log([*row[certain], *[c] * len(drawn)]) for row, (certain, drawn) in zip(q, kept)]).astype(np.float32),
        drawn=np.array([len(drawn) for _, drawn in kept], dtype=np.uint8),
        tail_square=np.array([(tail**2).sum() for tail in tails]),
    )


@pytest.mark.parametrize("name", CODECS)
def test_a_samples_error_is_the_dense_one_on_average(name):
    """The distance of 400 restored samples from the distribution, whose tails' part is expected and not observed: within 5%."""
    c, q = 1 / 64, dense_rows()
    exact = sample_of(q, c)
    rows = restored(name, Targets(mode="sampled", c=c), exact)
    error, plain, square, mass, mass_back = sample_errors(exact, rows.ids, rows.weights, c)
    dense = np.zeros_like(q)
    dense[np.arange(len(q))[:, None], rows.ids] += rows.weights
    is_certain = q[0] >= c
    np.testing.assert_allclose(square, (q**2).sum(1), rtol=1e-5)
    np.testing.assert_allclose(mass, q[:, is_certain].sum(1), rtol=1e-5)
    np.testing.assert_allclose(mass_back, dense[:, is_certain].sum(1), rtol=1e-5)
    np.testing.assert_allclose(plain, (c * q - q**2)[:, ~is_certain].sum(1), rtol=1e-4)
    np.testing.assert_allclose(error - plain, ((dense - q) ** 2)[:, is_certain].sum(1), rtol=1e-3, atol=1e-10)
    assert error.mean() == pytest.approx(((dense - q) ** 2).sum(1).mean(), rel=0.05)


def test_what_is_measured_of_either_kind():
    rng = np.random.default_rng(0)
    kept, sample = kept_document(rng, [5, 0, 9], VOCAB, entropy=True), sampled_document(rng, 4, VOCAB, 64)
    of_kept = measure(kept, restored("ranks", Targets(), kept), None)
    np.testing.assert_allclose(of_kept.mass_kept, -np.expm1(kept.tail_logprob.astype(float)), atol=1e-7)
    np.testing.assert_array_equal(of_kept.entropy, kept.entropy)
    assert not any(getattr(of_kept, name).any() for name in ("plain_error", "square", "certain_mass", "certain_restored"))
    of_sample = measure(sample, restored("streams", Targets(mode="sampled", c=1 / 64), sample), 1 / 64)
    assert (of_sample.error >= of_sample.plain_error).all() and (of_sample.plain_error >= 0).all()
    np.testing.assert_allclose(of_sample.certain_mass, of_sample.mass_kept, atol=1e-5)
    assert {len(part) for part in of_sample} == {4} and {len(part) for part in of_kept} == {3}


def measured(entropy: np.ndarray, error: np.ndarray) -> Measured:
    more = {name: np.random.default_rng(len(name)).random(len(entropy)) for name in Measured._fields[3:]}
    return Measured(entropy, np.full(len(entropy), 0.9), error, **more)


def test_bands_are_by_entropy_and_add_up():
    entropy = np.array([0, 0.05, 0.1, 0.99, 1.0, 2.9, 3.0, 11.9])
    rows = measured(entropy, np.geomspace(1e-6, 1e-2, 8))
    whole = summarize([rows], False)
    assert [band.rows for band in whole.bands] == [2, 2, 2, 2] and len(whole.bands) == len(BAND_EDGES) + 1
    assert whole.bands[1].error == pytest.approx(rows.error[2:4].sum()) and whole.bands[3].error_max == rows.error[7]
    assert (whole.kind, summarize([rows], True).kind) == ("kl", "squared_error")
    for name in ("mass_kept", "error", "plain_error", "square", "certain_mass", "certain_restored"):
        assert getattr(whole.whole, name) == pytest.approx(getattr(rows, name).sum())
    parts = [summarize([Measured(*(part[rows_] for part in rows))], False) for rows_ in (slice(3), slice(3, 8))]
    for one, other in zip(merge(parts).bands, whole.bands, strict=True):
        assert one.histogram == other.histogram and sum(one.histogram) == one.rows
        assert one.model_dump(exclude={"histogram"}) == pytest.approx(other.model_dump(exclude={"histogram"}))


def test_documents_without_rows_measure_nothing():
    nothing = summarize([measured(np.zeros(0), np.zeros(0))] * 2, False)
    assert nothing.whole.model_dump() == Band().model_dump()
    assert quantile(nothing.whole, 0.99) is None


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**32 - 1), st.floats(0.01, 1))
def test_a_quantile_is_within_a_tenth_of_a_decade(rows, seed, share):
    error = 10 ** np.random.default_rng(seed).uniform(-8.9, -0.1, rows)
    band = summarize([measured(np.zeros(rows), error)], False).whole
    exact = float(np.sort(error)[max(0, int(np.ceil(share * rows - 1e-9)) - 1)])
    found = quantile(band, share)
    assert exact * (1 - 1e-9) <= found <= exact * 10**0.1 * (1 + 1e-9)
    assert found <= band.error_max == error.max()


def test_errors_outside_of_the_histogram():
    """Equal rows and those below 1e-9 are in its first bin, those above 1 in its last, whose edge is the largest."""
    band = summarize([measured(np.zeros(4), np.array([0, -1e-12, 1e-15, 3.5]))], False).whole
    assert (band.histogram[0], band.histogram[BINS - 1], band.error_max) == (3, 1, 3.5)
    assert quantile(band, 1.0) == 3.5
    zero = summarize([measured(np.zeros(2), np.zeros(2))], False).whole
    assert quantile(zero, 0.99) == 0
