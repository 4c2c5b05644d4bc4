"""The k largest, or those above a threshold, against float64; a tail is a log-sum-exp, never 1 - sum(p) (field cases 15, 19)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.targets import NEVER, keep, keep_largest

TEMPERATURES = [0.5, 2.0, 4.0]
QWEN3_VOCAB = 151_936


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Rows this short are faster without a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(seed: int, count: int, vocab: int, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 logits [R, V] around any level, and labels [R]."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, scale, (count, vocab)) + rng.normal(0, 30)
    return torch.from_numpy(logits.astype(np.float32)), torch.from_numpy(rng.integers(0, vocab, count))


def tail_of(logits: torch.Tensor, kept: list[list[int]], temperature: float) -> np.ndarray:
    """[R] float64, log of the mass outside the kept ids at a temperature."""
    rest = (logits.double() / temperature).log_softmax(-1)
    for row, ids in enumerate(kept):
        rest[row, ids] = -torch.inf
    return rest.logsumexp(-1).numpy()


def kept_ids(kept) -> list[list[int]]:
    return [ids[:count].tolist() for ids, count in zip(kept.ids, kept.counts)]


def compare(kept, logits: torch.Tensor, labels: torch.Tensor, temperatures=TEMPERATURES) -> None:
    """Everything but which entries were kept, against float64."""
    exact = logits.double().log_softmax(-1)
    ids = kept_ids(kept)
    for row, (mine, values, count) in enumerate(zip(ids, kept.logprobs, kept.counts)):
        assert len(set(mine)) == count
        np.testing.assert_allclose(values[:count], exact[row, mine], atol=2e-5)
        assert (np.diff(values[:count]) <= 0).all()
    assert not kept.drawn.any() and kept.tail_logprob.shape == (len(ids), 1 + len(temperatures))
    for column, temperature in enumerate([1.0, *temperatures]):
        np.testing.assert_allclose(kept.tail_logprob[:, column], tail_of(logits, ids, temperature), atol=3e-5 / temperature + 1e-5)
    np.testing.assert_allclose(kept.label_logprob, exact.gather(-1, labels[:, None])[:, 0], atol=2e-5)
    np.testing.assert_allclose(kept.entropy, -(exact.exp() * exact).nansum(-1), atol=5e-5)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(2, 200), st.data(), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1.0, 5.0]))
def test_the_k_largest_against_float64(count, vocab, data, seed, scale):
    k = data.draw(st.integers(1, vocab))
    logits, labels = rows(seed, count, vocab, scale)
    kept = keep_largest(logits.clone(), labels, k, 0.0, TEMPERATURES)
    assert kept.counts.tolist() == [k] * count
    np.testing.assert_array_equal(logits.sort(-1, descending=True).values[:, :k], logits.gather(-1, kept.ids))
    compare(kept, logits, labels)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(2, 200), st.integers(0, 2**32 - 1), st.sampled_from([0.1, 1, 5]), st.sampled_from([0.3, 0.01, 1e-6]))
def test_a_threshold_keeps_what_is_above_it_and_k_at_most(count, vocab, seed, scale, c):
    logits, labels = rows(seed, count, vocab, scale)
    kept = keep_largest(logits.clone(), labels, 40, c, TEMPERATURES)
    q = logits.double().softmax(-1)
    assert ((q >= c * 1.0001).sum(-1).clamp(max=40) <= kept.counts).all() and (kept.counts <= (q >= c * 0.9999).sum(-1)).all()
    compare(kept, logits, labels)


def test_a_row_below_the_threshold_keeps_nothing():
    kept = keep_largest(torch.zeros(1, 1000), torch.tensor([7]), 64, 0.01)
    assert kept.counts.tolist() == [0]
    assert kept.tail_logprob[0, 0].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("scale, level", [(1.0, 0.0), (3.0, 20.0), (8.0, -40.0)])
def test_rows_of_qwen3s_size(scale, level):
    """Entropy, tails and label in float32 over 151,936 ids, the logits anywhere."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, QWEN3_VOCAB, generator=generator) * scale + level
    labels = torch.tensor([0, 5, QWEN3_VOCAB - 1])
    compare(keep_largest(logits.clone(), labels, 64, 0.0, TEMPERATURES), logits, labels)


@pytest.mark.parametrize("tail", [1e-12, 1e-9, 1e-6])
def test_a_tail_below_float32s_resolution_is_kept(tail):
    logits = torch.full((1, 1000), float(np.log(tail / 996)))
    logits[0, [3, 500, 7, 999]] = torch.tensor([0.4, 0.3, 0.2, 0.1]).log()
    kept = keep_largest(logits.clone(), torch.tensor([3]), 4)
    assert kept.ids.tolist() == [[3, 500, 7, 999]]
    assert np.exp(kept.tail_logprob.double()[0, 0]) == pytest.approx(np.exp(tail_of(logits, kept_ids(kept), 1.0)[0]), rel=1e-5)
    noise = 1 - kept.logprobs.exp().sum()
    assert abs(float(noise) - tail) > 1e-9  # what one minus the sum would have given


def test_a_label_off_the_kept_set_has_its_own_logprob():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    kept = keep_largest(logits.clone(), torch.tensor([3]), 2)
    assert kept.ids.tolist() == [[0, 1]]
    assert kept.label_logprob.item() == pytest.approx(logits.double().log_softmax(-1)[0, 3].item(), abs=1e-6)


def test_every_id_kept_leaves_no_tail_at_any_temperature():
    kept = keep_largest(torch.randn(3, 5), torch.tensor([0, 1, 2]), 5, 0.0, TEMPERATURES)
    assert torch.isneginf(kept.tail_logprob).all()


def test_more_than_the_vocabulary_is_the_vocabulary():
    assert keep_largest(torch.randn(2, 5), torch.tensor([0, 1]), 64).counts.tolist() == [5, 5]


def test_ids_that_a_teacher_masks_have_no_mass_and_break_nothing():
    logits, labels = rows(0, 4, 300, 2.0)
    masked = torch.arange(300) % 3 == 0
    whole = logits.clone()
    whole[:, masked] = -torch.inf
    labels[:] = torch.tensor([1, 2, 4, 5])
    kept = keep_largest(whole.clone(), labels, 40, 0.0, TEMPERATURES)
    compare(kept, whole, labels)
    assert not masked[kept.ids].any()
    dense = keep_largest(logits[:, ~masked].clone(), torch.tensor([0, 1, 2, 3]), 40, 0.0, TEMPERATURES)
    for name in ("logprobs", "tail_logprob", "label_logprob", "entropy"):
        np.testing.assert_allclose(getattr(kept, name), getattr(dense, name), atol=1e-5)


def test_all_that_is_left_is_masked():
    """No tail, to any reader: a logprob of -1e30 is probability 0, without an inf or a nan on the way."""
    logits = torch.tensor([[1.0, 0.0, -torch.inf, -torch.inf, -torch.inf]])
    kept = keep_largest(logits, torch.tensor([4]), 3, 0.0, TEMPERATURES)
    assert kept.logprobs[0, :2].exp().sum().item() == pytest.approx(1, abs=1e-6)
    assert (kept.tail_logprob.exp() == 0).all() and torch.isfinite(kept.tail_logprob).all()
    assert kept.label_logprob.item() == kept.logprobs[0, 2].item() == pytest.approx(NEVER)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("targets", [Targets(k=4), Targets(mode="threshold"), Targets(mode="sampled"), Targets(k=4, temperatures=[2.0])])
def test_a_value_that_is_no_number_makes_its_rows_label_none_and_no_other(targets, value):
    """It must not raise, whatever the counts come to: the engine looks at the label, and knows the document."""
    logits, labels = rows(1, 3, 400, 2.0)
    clean = keep(logits.clone(), labels, targets, torch.tensor([5, 6, 7]))
    logits[1, 77] = value
    kept = keep(logits, labels, targets, torch.tensor([5, 6, 7]))
    assert torch.isfinite(kept.label_logprob).tolist() == [True, False, True]
    for row in (0, 2):
        assert kept_ids(kept)[row] == kept_ids(clean)[row]
        assert kept.tail_logprob[row].tolist() == clean.tail_logprob[row].tolist()


def test_targets_choose_the_function():
    logits, labels = rows(2, 5, 400, 2.0)
    draws = torch.arange(5) << 37
    c = 1 / 64
    above = (logits.softmax(-1) >= c).sum(-1).clamp(max=9)
    assert keep(logits.clone(), labels, Targets(k=9), draws).counts.tolist() == [9] * 5
    assert keep(logits.clone(), labels, Targets(mode="threshold", c=c, k=9), draws).counts.tolist() == above.tolist()
    assert keep(logits.clone(), labels, Targets(mode="sampled", c=c), draws).drawn.all()
    assert keep(logits.clone(), labels, Targets(k=9, temperatures=[4.0, 0.5]), draws).tail_logprob.shape == (5, 3)
