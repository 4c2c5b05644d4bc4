"""Cached documents to padded tensors, against a slow loop over rows (field cases 8, 9, 17, 18)."""

import numpy as np
import pytest
import torch

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache import CachedDocument, PaddedDocuments
from stage2_student.batches import MicroBatch, collate
from stage2_student.loss import IGNORE_INDEX, fused_distillation_loss

VOCABULARY, SEPARATOR = 50, 48


def document(token_ids: list[int], *, seed: int = 0, widest: int = 5) -> CachedDocument:
    """Rows of 1 to `widest` entries that add up to 1 with their tail."""
    random = np.random.default_rng(seed)
    rows = len(token_ids) - 1
    counts = random.integers(1, widest + 1, rows).astype(np.uint8)
    ids = [random.permutation(VOCABULARY)[:count] for count in counts]
    mass = [random.dirichlet(np.ones(count + 1)) for count in counts]
    ids_flat, kept = (np.concatenate([np.zeros(0), *part]) for part in (ids, [m[:-1] for m in mass]))
    return CachedDocument(
        token_ids=np.array(token_ids, dtype=np.int32),
        counts=counts,
        tail_logprob=np.log(np.array([m[-1] for m in mass], dtype=np.float32)),
        label_logprob=np.zeros(rows, dtype=np.float32),
        ids=ids_flat.astype(np.int32),
        logprobs=np.log(kept).astype(np.float32),
    )


def padded(documents: list[CachedDocument]) -> PaddedDocuments:
    """What a cache of these documents reads, by a slow loop over rows."""
    lengths = np.array([len(each.token_ids) for each in documents], dtype=np.int32)
    made = PaddedDocuments.empty(lengths, max((int(each.counts.max(initial=0)) for each in documents), default=1))
    for place, each in enumerate(documents):
        made.token_ids[place, : len(each.token_ids)] = each.token_ids
        made.counts[place, : each.tokens] = each.counts
        made.tail_mass[place, : each.tokens] = each.tail_mass
        for t in range(each.tokens):
            ids, logprobs = each.row(t)
            made.ids[place, t, : len(ids)], made.weights[place, t, : len(ids)] = ids, np.exp(logprobs)
    return made


def ragged(seed: int = 0) -> list[CachedDocument]:
    random = np.random.default_rng(seed)
    return [
        document(random.integers(0, VOCABULARY, length).tolist(), seed=place, widest=1 + place)
        for place, length in enumerate([9, 2, 1, 14, 5])
    ]


def assert_row(batch: MicroBatch, place: int, source: CachedDocument, t: int) -> None:
    """Row `place` of the flat batch is the document's row t: its entries, and the label after token t."""
    targets, (ids, logprobs) = batch.targets, source.row(t)
    valid = targets.valid[place]
    assert batch.labels[place] == source.token_ids[t + 1]
    assert valid.tolist() == [True] * len(ids) + [False] * (len(valid) - len(ids))
    assert targets.ids[place][valid].tolist() == ids.tolist()
    assert np.array_equal(targets.weights[place][valid].numpy(), np.exp(logprobs))
    assert targets.tail_mass[place] == np.exp(source.tail_logprob[t])


def test_collate_against_a_loop_over_rows():
    documents = ragged()
    batch = collate(padded(documents), VOCABULARY)
    time = batch.input_ids.shape[1]
    assert batch.input_ids.shape == (5, 14) and batch.labels.shape == (70,) and batch.tokens == 8 + 1 + 0 + 13 + 4
    for row, source in enumerate(documents):
        length = len(source.token_ids)
        assert batch.input_ids[row, :length].tolist() == source.token_ids.tolist()
        for t in range(time):
            if t < length - 1:
                assert_row(batch, row * time + t, source, t)
            else:
                assert batch.labels[row * time + t] == IGNORE_INDEX and not batch.targets.valid[row * time + t].any()


def test_packed_rows_are_those_of_the_documents_one_behind_the_other():
    documents, rows = ragged(), 0
    batch = collate(padded(documents), VOCABULARY, packed=True)
    assert batch.document_lengths == tuple(len(source.token_ids) for source in documents)
    assert batch.input_ids.tolist() == [[int(token) for source in documents for token in source.token_ids]]
    assert batch.tokens == 8 + 1 + 0 + 13 + 4 and len(batch.labels) == batch.input_ids.numel() == len(batch.targets.ids)
    for source in documents:
        last = rows + len(source.token_ids) - 1
        for t in range(len(source.token_ids) - 1):
            assert_row(batch, rows + t, source, t)
        assert batch.labels[last] == IGNORE_INDEX and not batch.targets.valid[last].any()
        rows = last + 1


def test_types_and_widths():
    batch = collate(padded(ragged()), VOCABULARY)
    ids, weights, valid, tail = batch.targets
    assert (batch.input_ids.dtype, batch.labels.dtype, ids.dtype) == (torch.int32, torch.int64, torch.int32)
    there = batch.to(torch.device("cpu"))
    assert (there.input_ids.dtype, there.targets.ids.dtype) == (torch.int64,) * 2
    assert torch.equal(there.targets.ids, ids) and torch.equal(there.input_ids, batch.input_ids)
    assert (weights.dtype, tail.dtype, valid.dtype) == (torch.float32, torch.float32, torch.bool)
    assert ids.shape == weights.shape == valid.shape and tail.shape == batch.labels.shape
    assert ids.shape[1] == max(int(d.counts.max(initial=0)) for d in ragged())
    assert ids.min() >= 0 and ids.max() < VOCABULARY


def test_every_counted_row_adds_up_to_one():
    batch = collate(padded(ragged()), VOCABULARY)
    mass = batch.targets.weights.sum(-1) + batch.targets.tail_mass
    torch.testing.assert_close(mass[batch.labels != IGNORE_INDEX], torch.ones(batch.tokens), atol=1e-6, rtol=0)


def loss_of(batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    hidden = torch.ones(len(batch.labels), 4, requires_grad=True)
    batch = batch.to(torch.device("cpu"))
    value = fused_distillation_loss(hidden, torch.zeros(VOCABULARY, 4, requires_grad=True), batch.labels, batch.targets)
    value.loss.backward()
    return value.loss.detach(), hidden.grad


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("documents", [[], [document([7])], [document([7]), document([3])]])
def test_nothing_to_predict_is_a_batch_of_no_label_and_loss_zero(documents, packed):
    """An idle rank must still run a forward and a backward, or collectives hang."""
    batch = collate(padded(documents), VOCABULARY, packed=packed)
    assert batch.tokens == 0 and batch.input_ids.numel() >= 1
    assert (batch.labels == IGNORE_INDEX).all() and len(batch.labels) == batch.input_ids.numel()
    loss, grad = loss_of(batch)
    assert loss == 0 and not grad.any()


@pytest.mark.parametrize("token", [SEPARATOR, 0])
def test_masks_come_from_lengths_not_from_ids(token):
    """transformers#23530: padding that equals the end of text must not hide its labels; 0 is what is padded with."""
    batch = collate(padded([document([token] * 6), document(list(range(12)))]), VOCABULARY)
    labels = batch.labels.reshape(2, 12)
    assert labels[0].tolist() == [token] * 5 + [IGNORE_INDEX] * 7
    assert (labels[1] != IGNORE_INDEX).sum() == 11 and batch.tokens == 16


def test_a_neighbour_changes_no_row():
    short, long = document([1, 2, 3, 4], widest=2), document(list(range(20)), seed=1, widest=7)
    alone, together = collate(padded([short]), VOCABULARY), collate(padded([short, long]), VOCABULARY)
    for t in range(3):
        assert_row(alone, t, short, t)
        assert_row(together, t, short, t)


@pytest.mark.parametrize("place", ["token", "entry"])
def test_an_id_outside_the_vocabulary_is_one_line(place):
    bad = document([1, 2, VOCABULARY if place == "token" else 3])
    if place == "entry":
        bad.ids[-1] = VOCABULARY + 4
    with pytest.raises(CacheError, match=rf"id {VOCABULARY + (4 if place == 'entry' else 0)} is outside .* {VOCABULARY}") as error:
        collate(padded([document([1, 2]), bad]), VOCABULARY)
    assert "\n" not in str(error.value)
    collate(padded([bad]), VOCABULARY + 5)


def test_to_moves_every_part():
    batch = collate(padded(ragged()), VOCABULARY).to(torch.device("meta"))
    parts = [batch.input_ids, batch.labels, *batch.targets]
    assert all(part.device.type == "meta" for part in parts)
