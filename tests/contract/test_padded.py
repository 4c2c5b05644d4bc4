"""Rectangles of documents: what is in them is what each document gives alone, and the padding is zero (field cases 8, 17)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import kept_document, sampled_document
from stored import CODECS, codec, through_file

from pipeline.contract.logit_cache.padded import PaddedDocuments, read_rows
from pipeline.contract.manifest.shard import Targets

VOCAB = 5000
FIELDS = ("token_ids", "counts", "tail_mass", "ids", "weights", "label_logprob")
TARGETS = [Targets(k=255), Targets(mode="threshold", k=255, temperatures=[1.0, 2.0]), Targets(mode="sampled", c=1 / 64)]


def documents(targets, lengths, seed=0):
    rng = np.random.default_rng(seed)
    if targets.mode == "sampled":
        return [sampled_document(rng, length - 1, VOCAB, 64) for length in lengths]
    return [kept_document(rng, rng.integers(0, 60, length - 1).tolist(), VOCAB, targets.other_temperatures) for length in lengths]


@pytest.mark.parametrize("targets", TARGETS, ids=["topk", "temperatures", "sampled"])
@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=8, deadline=None)
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), extra=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_rectangles_hold_each_documents_rows_and_zeros(name, targets, lengths, extra, seed):
    written, made = documents(targets, lengths, seed), codec(name, targets, VOCAB)
    columns = through_file(made, written)
    for temperature in targets.all_temperatures:
        alone = [read_rows(made, columns, row, temperature) for row in range(len(written))]
        width = max(1, *(rows.ids.shape[1] for rows in alone))
        padded = PaddedDocuments.empty(np.array(lengths, dtype=np.int32), width + extra)
        half = len(written) // 2
        for rows in (range(half, len(written)), range(half)):  # two calls, each in its own order
            padded.fill([*reversed(rows)], made, temperature, columns, [*reversed(rows)])
        for place, (exact, rows) in enumerate(zip(written, alone, strict=True)):
            same_and_then_zero(padded.token_ids[place], exact.token_ids)
            same_and_then_zero(padded.label_logprob[place], columns.part("label_logprob", place))
            for field in ("counts", "tail_mass", "ids", "weights"):
                same_and_then_zero(getattr(padded, field)[place], getattr(rows, field))


def same_and_then_zero(padded: np.ndarray, alone: np.ndarray) -> None:
    here = tuple(slice(size) for size in alone.shape)
    np.testing.assert_array_equal(padded[here], alone)
    assert np.count_nonzero(padded) == np.count_nonzero(alone)


@pytest.mark.parametrize("name", CODECS)
def test_a_longer_or_wider_neighbour_changes_no_value(name):
    targets, made = Targets(k=255), codec(name, Targets(k=255), VOCAB)
    (short,) = documents(targets, [6])
    long = kept_document(np.random.default_rng(1), [255] * 30, VOCAB)
    columns = through_file(made, [short, long])
    together = PaddedDocuments.empty(np.array([6, 31], dtype=np.int32), 255)
    alone = PaddedDocuments.empty(np.array([6], dtype=np.int32), 60)
    for padded, rows in ((together, (0, 1)), (alone, (0,))):
        padded.fill(rows, made, 1.0, columns, rows)
    for field in FIELDS:
        same_and_then_zero(getattr(together, field)[0], getattr(alone, field)[0])


@pytest.mark.parametrize("name", CODECS)
def test_documents_go_to_the_places_they_are_given(name):
    targets = Targets(k=255)
    made, written = codec(name, targets, VOCAB), documents(targets, [7, 3, 9, 5])
    columns, wanted, moved = through_file(made, written), [2, 0, 3], [0, 2, 1]
    lengths = np.array([9, 5, 7], dtype=np.int32)
    ordered, shuffled = (PaddedDocuments.empty(lengths, 60) for _ in range(2))
    for place, row in zip(moved, wanted, strict=True):
        ordered.fill([place], made, 1.0, columns, [row])
    shuffled.fill(moved, made, 1.0, columns, wanted)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(ordered, field), getattr(shuffled, field))
    assert [ids[:length].tolist() for ids, length in zip(shuffled.token_ids, lengths)] == [written[n].token_ids.tolist() for n in (2, 3, 0)]


def test_the_last_position_of_a_document_has_no_row():
    targets, made = Targets(), codec("ranks", Targets(), VOCAB)
    written = [kept_document(np.random.default_rng(0), [9] * (length - 1), VOCAB) for length in (1, 4, 2)]
    padded = PaddedDocuments.empty(np.array([1, 4, 2], dtype=np.int32), 9)
    padded.fill(range(3), made, 1.0, through_file(made, written), range(3))
    assert (padded.counts > 0).sum(1).tolist() == [0, 3, 1]
    assert not padded.weights[:, 3].any() and targets.mode == "topk"


def test_no_documents_and_documents_of_one_token_have_room_for_two():
    assert PaddedDocuments.empty(np.zeros(0, dtype=np.int32), 3).ids.shape == (0, 2, 3)
    assert PaddedDocuments.empty(np.ones(2, dtype=np.int32), 3).weights.shape == (2, 2, 3)
