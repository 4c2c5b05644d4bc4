"""Every codec gives back every row of every kind of target: ids as a set, counts, tokens, and the values it promised (field case 10)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import CORNERS, kept_document, rows_of, sampled_document
from stored import CODECS, codec, through_file

from pipeline.contract.logit_cache.columns import tail_name
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.quantizers import round_multiples, round_square_root
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets

QWEN3_VOCAB = 151_936
VOCABULARIES = [300, 5000, QWEN3_VOCAB, 2**20]
MODES = [Targets(mode="topk", k=255), Targets(mode="threshold", c=1e-7, k=255), Targets(mode="topk", temperatures=[2.0, 0.5], entropy=True)]
SLOTS = [2, 3, 64, 128, 254]
FLOAT16 = 2.0**-11  # relative
counts_of_documents = st.lists(st.lists(st.integers(0, 8) | st.integers(0, 255), max_size=5), min_size=1, max_size=4)


def as_sets(ids: np.ndarray, weights: np.ndarray, counts: np.ndarray) -> list[dict[int, float]]:
    """Each row's weights by id; whatever is beyond its count has to be zero."""
    assert not ids[np.arange(ids.shape[1]) >= counts[:, None]].any() and not weights[np.arange(ids.shape[1]) >= counts[:, None]].any()
    rows = [dict(zip(row[:count].tolist(), weight[:count].tolist(), strict=True)) for row, weight, count in zip(ids, weights, counts)]
    assert [len(row) for row in rows] == counts.tolist()
    return rows


def normalised(values: np.ndarray, tail_logprob: float) -> np.ndarray:
    """Values that sum to what the tail leaves, float64."""
    mass = max(-np.expm1(np.float64(tail_logprob)), 2.0**-24)
    return values * (mass / values.sum()) if values.sum() > 0 else values * 0


@pytest.mark.parametrize("targets", MODES, ids=["topk", "threshold", "temperatures"])
@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=15, deadline=None)
@given(counts=counts_of_documents, size=st.sampled_from(VOCABULARIES), seed=st.integers(0, 2**32 - 1), first=st.integers(0, 2**40))
def test_kept_rows_come_back(name, targets, counts, size, seed, first):
    rng = np.random.default_rng(seed)
    written = [kept_document(rng, part, size, targets.other_temperatures, targets.entropy) for part in counts]
    made = codec(name, targets, size)
    columns = through_file(made, written, first)
    for row, exact in enumerate(written):
        np.testing.assert_array_equal(columns.part("token_ids", row), exact.token_ids)
        np.testing.assert_allclose(columns.part("label_logprob", row), exact.label_logprob, rtol=FLOAT16, atol=1e-7)
        if targets.entropy:
            np.testing.assert_allclose(columns.part("entropy", row), exact.entropy, rtol=FLOAT16, atol=1e-7)
        for temperature in targets.all_temperatures:
            back = read_rows(made, columns, row, temperature)
            assert back.counts.dtype == np.uint8 and back.ids.dtype == np.int32 and back.weights.dtype == np.float32
            entries = as_sets(back.ids, back.weights, back.counts)
            tails = columns.part(tail_name(temperature), row).astype(float)
            for t, (logprobs, ids) in enumerate(zip(rows_of(exact, exact.logprobs), rows_of(exact, exact.ids))):
                assert back.tail_mass[t] == pytest.approx(np.exp(tails[t]), rel=1e-6)
                check_row(entries[t], tails[t], wanted_row(made, targets, logprobs, ids, temperature))


def wanted_row(made, targets, logprobs, ids, temperature) -> dict[int, float]:
    """Weights up to a factor, by id: what the codec's value of each entry stands for, as a probability at the temperature."""
    if made.name in ("raw", "plain"):
        return dict(zip(ids.tolist(), np.exp(logprobs.astype(np.float16).astype(float) / temperature).tolist(), strict=True))
    codes = made.quantizer.encode(logprobs).astype(float)
    stands_for = np.exp(-codes / 16 / temperature) if targets.other_temperatures else (codes / 255) ** 2
    return {token: value for token, value, code in zip(ids.tolist(), stands_for.tolist(), codes) if code >= 0}


def check_row(back: dict[int, float], tail_logprob: float, wanted: dict[int, float]) -> None:
    """The same ids; weights in the wanted proportions, which sum to one with the tail."""
    assert back.keys() == wanted.keys()
    if wanted:
        got = np.array([back[token] for token in wanted])
        assert got.sum(dtype=float) + np.exp(tail_logprob) == pytest.approx(1, abs=3e-6)
        np.testing.assert_allclose(got, normalised(np.array(list(wanted.values())), tail_logprob), rtol=3e-5)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=20, deadline=None)
@given(
    rows=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    size=st.sampled_from([5, *VOCABULARIES]),
    slots=st.sampled_from(SLOTS),
    seed=st.integers(0, 2**32 - 1),
)
def test_sampled_rows_come_back(name, rows, size, slots, seed):
    rng = np.random.default_rng(seed)
    targets = Targets(mode="sampled", c=1 / slots)
    written = [sampled_document(rng, count, size, slots) for count in rows]
    made = codec(name, targets, size)
    columns = through_file(made, written)
    for row, exact in enumerate(written):
        np.testing.assert_array_equal(columns.part("token_ids", row), exact.token_ids)
        back = read_rows(made, columns, row)
        assert not back.tail_mass.any()
        entries = as_sets(back.ids, back.weights, back.counts)
        if name in ("streams", "clusters"):
            check_multiples(exact, entries, slots)
        else:
            check_certain_and_drawn(name, exact, entries, slots)


def check_multiples(exact: CachedDocument, entries: list[dict[int, float]], slots: int) -> None:
    multiples = rows_of(exact, round_multiples(exact, 1 / slots))
    for back, ids, wanted in zip(entries, rows_of(exact, exact.ids), multiples, strict=True):
        whole = {token: round(weight * slots) for token, weight in back.items()}
        assert whole == {token: multiple for token, multiple in zip(ids.tolist(), wanted.tolist(), strict=True) if multiple > 0}
        assert sum(whole.values()) == slots
        assert all(weight == np.float32(whole[token] / slots) for token, weight in back.items())


def check_certain_and_drawn(name: str, exact: CachedDocument, entries: list[dict[int, float]], slots: int) -> None:
    ranks = name == "ranks"
    values = (round_square_root(exact) / 255.0) ** 2 if ranks else np.exp(exact.logprobs.astype(np.float16).astype(float))
    tails = exact.tail_logprob.astype(np.float16 if ranks else np.float32)
    parts = zip(entries, rows_of(exact, exact.ids), rows_of(exact, values), exact.drawn, tails, strict=True)
    for back, ids, value, drawn, tail in parts:
        certain = len(ids) - int(drawn)
        assert back.keys() == set(ids.tolist())
        assert all(back[token] == np.float32(1 / slots) for token in ids[certain:].tolist())
        wanted = normalised(value[:certain], tail)
        np.testing.assert_allclose([back[token] for token in ids[:certain].tolist()], wanted, rtol=1e-5)


@pytest.mark.parametrize("mode", ["topk", "threshold", "sampled"])
@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [QWEN3_VOCAB, 2**20])
def test_every_id_of_a_vocabulary_comes_back(name, mode, size):
    wide = 128
    ids = np.arange(size, dtype=np.int32)
    rows = -(-size // wide)
    counts = np.full(rows, wide)
    counts[-1] = size - wide * (rows - 1)
    exact = CachedDocument(
        token_ids=np.resize(ids, rows + 1),
        counts=counts.astype(np.uint8),
        tail_logprob=np.full(rows, 0 if mode == "sampled" else -1, dtype=np.float32),
        label_logprob=np.zeros(rows, dtype=np.float32),
        ids=ids,
        logprobs=np.full(size, -np.log(wide), dtype=np.float32),
        drawn=counts.astype(np.uint8) if mode == "sampled" else None,
    )
    made = codec(name, Targets(mode=mode, c=1 / wide, k=wide), size)
    back = read_rows(made, through_file(made, [exact]), 0)
    assert back.counts.tolist() == counts.tolist()
    np.testing.assert_array_equal(np.sort(back.ids[np.arange(wide) < counts[:, None]].reshape(-1)), ids)
    for t in (0, rows // 2, rows - 1):
        assert set(back.ids[t, : counts[t]].tolist()) == set(range(t * wide, t * wide + int(counts[t])))


@pytest.mark.parametrize("name", CODECS)
def test_ids_beyond_a_power_of_two_do_not_alias(name):
    ids, rows = np.array(CORNERS, dtype=np.int32), len(CORNERS) - 1
    counts, flat = np.full(rows, len(ids), dtype=np.uint8), np.full(rows, -1, dtype=np.float32)
    exact = CachedDocument(ids, counts, flat, flat, np.tile(ids, rows), np.full(len(ids) * rows, -2, dtype=np.float32))
    made = codec(name, Targets(), 2**20)
    columns = through_file(made, [exact])
    assert columns.part("token_ids", 0).tolist() == ids.tolist()
    for row in read_rows(made, columns, 0).ids:
        assert sorted(row.tolist()) == sorted(CORNERS)


@pytest.mark.parametrize("targets", [Targets(k=255), Targets(mode="threshold", k=255), Targets(k=255, temperatures=[2.0])])
@pytest.mark.parametrize("name", CODECS)
def test_empty_and_full_rows_beside_each_other(name, targets):
    counts = [0, 2, 0, 0, 255, 255, 1, 0]
    exact = kept_document(np.random.default_rng(2), counts, QWEN3_VOCAB, targets.other_temperatures)
    exact.logprobs[:] = np.maximum(exact.logprobs, -11)  # of no entry is the code 0
    made = codec(name, targets)
    back = read_rows(made, through_file(made, [exact]), 0)
    assert back.counts.tolist() == counts
    assert [set(row) for row in as_sets(back.ids, back.weights, back.counts)] == [set(ids.tolist()) for ids in rows_of(exact, exact.ids)]
    assert back.tail_mass[[0, 2, 3, 7]].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("mode", ["topk", "sampled"])
@pytest.mark.parametrize("name", CODECS)
def test_documents_of_one_and_two_tokens(name, mode):
    rng = np.random.default_rng(0)
    made = codec(name, Targets(mode=mode, c=1 / 128))
    lengths = [1, 2, 1, 1, 2, 1]
    written = [
        sampled_document(rng, length - 1, QWEN3_VOCAB, 128) if mode == "sampled" else kept_document(rng, [9] * (length - 1), QWEN3_VOCAB)
        for length in lengths
    ]
    for documents in (written, written[:1], written[1:2]):
        columns = through_file(made, documents)
        for row, exact in enumerate(documents):
            back = read_rows(made, columns, row)
            assert len(back.counts) == len(back.ids) == len(back.weights) == len(back.tail_mass) == exact.tokens
            assert columns.part("token_ids", row).tolist() == exact.token_ids.tolist()
            if mode == "topk":
                assert [set(part.tolist()) for part in back.ids] == [set(part.tolist()) for part in rows_of(exact, exact.ids)]


@pytest.mark.parametrize("name", CODECS)
def test_a_sample_of_the_most_entries_there_can_be(name):
    """c = 1/254: 254 drawn ones, or 255 entries, one more than 1/c, when sums were rounded up."""
    c, ids = 1 / 254, np.random.default_rng(0).permutation(QWEN3_VOCAB)[: 254 + 255].astype(np.int32)
    exact = CachedDocument(
        token_ids=np.arange(3, dtype=np.int32),
        counts=np.array([254, 255], dtype=np.uint8),
        tail_logprob=np.log([1.0, 1 - 100 * c]).astype(np.float32),
        label_logprob=np.zeros(2, dtype=np.float32),
        ids=ids,
        logprobs=np.full(len(ids), np.log(c), dtype=np.float32),
        drawn=np.array([254, 155], dtype=np.uint8),
    )
    made = codec(name, Targets(mode="sampled", c=c))
    back = read_rows(made, through_file(made, [exact]), 0)
    entries = as_sets(back.ids, back.weights, back.counts)
    assert entries[0].keys() == set(ids[:254].tolist())
    if name in ("streams", "clusters"):
        assert back.counts.tolist() == [254, 254]  # the weights sum to 1: a certain entry had to go
        check_multiples(exact, entries, 254)
    else:
        assert entries[1].keys() == set(ids[254:].tolist())


def test_streams_is_ranks_outside_of_samples():
    written = [kept_document(np.random.default_rng(3), [64] * 9, QWEN3_VOCAB)]
    one, other = (codec(name, Targets()).encode(written, 0) for name in ("ranks", "streams"))
    assert one.equals(other)
