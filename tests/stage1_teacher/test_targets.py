"""Kept entries, tail and label against float64; the tail is never 1 - sum(p) (field case 15)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stage1_teacher.targets import keep_topk


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(2, 200), st.data(), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 5.0]))
def test_against_float64(rows, vocab, data, seed, scale):
    k = data.draw(st.integers(1, vocab))
    rng = np.random.default_rng(seed)
    logits = (rng.normal(0, scale, (rows, vocab)) + rng.normal(0, 30)).astype(np.float32)
    labels = rng.integers(0, vocab, rows)
    kept = keep_topk(torch.from_numpy(logits.copy()), torch.from_numpy(labels), k)
    exact = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    ids = kept.ids.numpy()
    assert kept.ids.shape == kept.logprobs.shape == (rows, k)
    assert all(len(set(row)) == k for row in ids.tolist())
    np.testing.assert_allclose(np.sort(exact, axis=1)[:, ::-1][:, :k], np.take_along_axis(exact, ids, 1), atol=1e-12)
    np.testing.assert_allclose(kept.logprobs.numpy(), np.take_along_axis(exact, ids, 1), atol=2e-5)
    np.testing.assert_allclose(kept.label_logprob.numpy(), exact[np.arange(rows), labels], atol=2e-5)
    np.testing.assert_allclose(kept.tail_logprob.numpy(), _tail(exact, ids), atol=2e-5)


def _tail(exact, ids):
    rest = exact.copy()
    np.put_along_axis(rest, ids, -np.inf, 1)
    return np.logaddexp.reduce(rest, axis=1)


@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-6])
def test_a_tail_below_float32s_resolution_is_kept(tail):
    logits = torch.full((1, 1000), float(np.log(tail / 996)))
    logits[0, [3, 500, 7, 999]] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    exact = _tail(logits.double().log_softmax(-1).numpy(), np.array([[3, 500, 7, 999]]))
    kept = keep_topk(logits, torch.tensor([3]), 4)
    assert kept.ids.tolist() == [[3, 500, 7, 999]]
    assert np.exp(kept.tail_logprob.numpy().astype(np.float64)) == pytest.approx(np.exp(exact), rel=1e-5)
    assert np.exp(exact) == pytest.approx(tail, rel=1e-3)


def test_one_minus_the_sum_would_be_noise():
    logits = torch.full((1, 1000), float(np.log(1e-12 / 996)))
    logits[0, :4] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    noise = 1 - keep_topk(logits, torch.tensor([0]), 4).logprobs.exp().sum()
    assert abs(float(noise) - 1e-12) > 1e-13


def test_a_label_off_the_kept_set_has_its_own_logprob():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    exact = logits.double().log_softmax(-1)[0]
    kept = keep_topk(logits.clone(), torch.tensor([3]), 2)
    assert kept.ids.tolist() == [[0, 1]]
    assert kept.label_logprob.item() == pytest.approx(exact[3].item(), abs=1e-6)


def test_every_id_kept_leaves_no_tail():
    kept = keep_topk(torch.randn(3, 5), torch.tensor([0, 1, 2]), 5)
    assert torch.isneginf(kept.tail_logprob).all()
