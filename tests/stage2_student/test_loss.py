"""The fused loss equals the reference, values and gradients, in every mode and every awkward case."""

import pytest
import torch
from losses import TAILS, Case, D, K, T, V, distance, fused, gradients, make_case, reference
from torch.utils._python_dispatch import TorchDispatchMode

from stage2_student.loss import IGNORE_INDEX, SparseTargets, fused_distillation_loss

MODES = pytest.mark.parametrize("tail", TAILS)
TEMPERATURES = pytest.mark.parametrize("temperature", [1.0, 2.0])
EXACT = 1e-12


def assert_equal(case: Case, *, within: float = EXACT, upstream: float = 1.0, chunk: int = 5, **options) -> None:
    mine, theirs = fused(case, chunk=chunk, **options), reference(case, **options)
    for name, a, b in zip(mine._fields, mine, theirs, strict=True):
        assert abs(a.item() - b.item()) <= within * max(1.0, abs(b.item())), name
    for a, b in zip(gradients(case, mine.loss, upstream), gradients(case, theirs.loss, upstream), strict=True):
        assert torch.isfinite(a).all() and distance(a, b) <= within


@MODES
@TEMPERATURES
@pytest.mark.parametrize("chunk", [1, 5, 1024])
def test_fused_equals_reference(tail, temperature, chunk):
    assert T % 5 and (T - 2) % 5  # the last chunk is short, ignored rows counted or not
    assert_equal(make_case(), tail=tail, temperature=temperature, chunk=chunk)


@MODES
@TEMPERATURES
def test_an_upstream_gradient_and_a_divisor_of_ones_own(tail, temperature):
    assert_equal(make_case(seed=1), tail=tail, temperature=temperature, upstream=-3.5, tokens=7.0)


@MODES
@pytest.mark.parametrize(("alpha", "gamma"), [(1.0, 0.0), (0.0, 1.0), (0.25, 2.0)])
def test_each_term_alone(tail, alpha, gamma):
    assert_equal(make_case(seed=2), tail=tail, alpha=alpha, gamma=gamma, temperature=2.0)
    assert_equal(make_case(seed=2), tail=tail, alpha=alpha, gamma=gamma)


@MODES
@TEMPERATURES
def test_a_student_whose_own_tail_vanishes(tail, temperature):
    """Peaked logits: 1 - sum(p_K) would be rounding noise, and it divides a gradient."""
    case = make_case(seed=3, scale=12.0)
    logits = (case.hidden @ case.weight.T).detach()
    kept, ids = (logits / temperature).softmax(-1).topk(K)
    tail_mass = case.targets.tail_mass.clamp_max(0.5)
    q = kept * ((1 - tail_mass) / kept.sum(-1))[:, None]
    case = case._replace(targets=SparseTargets(ids, q, torch.ones_like(ids, dtype=torch.bool), tail_mass))
    assert 0 < fused(case, temperature=temperature).student_tail_mass < 1e-2
    assert_equal(case, tail=tail, temperature=temperature, within=1e-11)


@MODES
def test_tokens_divides_sums(tail):
    case = make_case()
    counted = int((case.labels != IGNORE_INDEX).sum())
    mean, sums = fused(case, tail=tail), fused(case, tail=tail, tokens=1.0)
    assert all(torch.isclose(a * counted, b, rtol=EXACT) for a, b in zip(mean, sums, strict=True))


@MODES
@TEMPERATURES
def test_all_rows_ignored_is_zero_with_zero_gradients(tail, temperature):
    case = make_case()
    case = case._replace(labels=torch.full_like(case.labels, IGNORE_INDEX))
    for loss in (fused, reference):
        value = loss(case, tail=tail, temperature=temperature)
        assert all(part == 0 for part in value)
        assert all(not grad.any() for grad in gradients(case, value.loss))


@MODES
def test_ignored_rows_and_padding_columns_change_nothing(tail):
    """Field case 17: the values are those of the counted rows alone, whatever the width."""
    case = make_case()
    counted = case.labels != IGNORE_INDEX
    alone = Case(case.hidden[counted], case.weight, case.labels[counted], case.targets.rows(counted))
    ids, weights, valid, _ = case.targets
    padding = torch.zeros(T, 9, dtype=torch.bool)
    wide = [torch.cat([part, padding.to(part.dtype)], -1) for part in (ids, weights, valid)]
    wider = case._replace(targets=case.targets._replace(ids=wide[0], weights=wide[1], valid=wide[2]))
    for other in (alone, wider):
        assert all(torch.isclose(a, b, rtol=EXACT) for a, b in zip(fused(case, tail=tail), fused(other, tail=tail), strict=True))
    grads = [gradients(case, fused(c, tail=tail).loss) for c in (case, alone, wider)]
    assert all(distance(a, b) < EXACT for grad in grads[1:] for a, b in zip(grad, grads[0], strict=True))
    assert not grads[0][0][~counted].any()


@MODES
@TEMPERATURES
def test_gradcheck(tail, temperature):
    case = make_case(rows=9, vocabulary=13)

    def loss(hidden, weight):
        return fused_distillation_loss(hidden, weight, *case[2:], tail=tail, temperature=temperature, chunk=4).loss

    assert torch.autograd.gradcheck(loss, (case.hidden, case.weight), fast_mode=True)


@MODES
@TEMPERATURES
def test_without_a_gradient_the_values_are_the_same(tail, temperature):
    case = make_case()
    with torch.no_grad():
        quiet = fused(case, tail=tail, temperature=temperature)
    loud = fused(case, tail=tail, temperature=temperature)
    assert all(torch.equal(a, b) for a, b in zip(quiet, loud, strict=True))
    assert not quiet.loss.requires_grad and loud.loss.requires_grad
    assert not any(part.requires_grad for part in loud[1:])


# --- precision ---


@MODES
@TEMPERATURES
def test_float32_with_a_tail_of_1e_10_against_float64(tail, temperature):
    case, exact = make_case(dtype=torch.float32, scale=3.0), make_case(scale=3.0)
    mass = torch.full((T,), 1e-10).where(exact.targets.valid.any(-1), 1.0)
    kept = exact.targets.weights / exact.targets.weights.masked_fill(~exact.targets.valid, 0).sum(-1, keepdim=True) * (1 - 1e-10)
    case = case._replace(targets=exact.targets._replace(weights=kept.float(), tail_mass=mass))
    exact = Case(case.hidden.detach().double().requires_grad_(), case.weight.detach().double().requires_grad_(), case.labels, case.targets)
    mine, theirs = fused(case, tail=tail, temperature=temperature), reference(exact, tail=tail, temperature=temperature)
    assert mine.loss.dtype == torch.float32
    assert all(torch.isclose(a.double(), b.double(), rtol=1e-5) for a, b in zip(mine, theirs, strict=True))
    for grad, expected in zip(gradients(case, mine.loss), gradients(exact, theirs.loss), strict=True):
        assert grad.dtype == torch.float32 and distance(grad, expected) < 1e-5


@TEMPERATURES
def test_a_float32_students_tail_of_1e_11_keeps_its_precision(temperature):
    """The bucket's gradient divides by it."""
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(0))
    logits[:, :K] += 30 * temperature
    q, labels = torch.full((6, K), 0.9 / K), torch.arange(6)
    targets = SparseTargets(torch.arange(K).expand(6, K), q, torch.ones(6, K, dtype=torch.bool), torch.full((6,), 0.1))
    grads, masses = [], []
    for dtype in (torch.float32, torch.float64):
        z = logits.to(dtype).requires_grad_()
        value = fused_distillation_loss(z, torch.eye(V, dtype=dtype), labels, targets, temperature=temperature, chunk=4)
        grads += torch.autograd.grad(value.loss, [z])
        masses.append(value.student_tail_mass)
    assert 0 < masses[1] < 1e-9 and torch.isclose(*masses, rtol=1e-4)
    torch.testing.assert_close(grads[0].double(), grads[1], rtol=1e-4, atol=1e-8)


@MODES
@pytest.mark.parametrize("chunk", [5, 1024])
def test_bfloat16_runs_with_a_float32_loss(tail, chunk):
    case, exact = make_case(dtype=torch.bfloat16), make_case()
    value = fused(case, tail=tail, chunk=chunk)
    d_hidden, d_weight = gradients(case, value.loss)
    assert value.loss.dtype == torch.float32
    assert d_hidden.dtype == torch.bfloat16 and d_weight.dtype == torch.bfloat16
    expected = reference(exact, tail=tail)
    assert torch.isclose(value.loss.double(), expected.loss, rtol=0.05)
    assert all(distance(a, b) < 0.05 for a, b in zip((d_hidden, d_weight), gradients(exact, expected.loss), strict=True))


# --- memory ---


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation returned."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for part in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(part, torch.Tensor):
                self.elements = max(self.elements, part.numel())
        return result


def largest(chunk: int, tail: str, temperature: float) -> int:
    case = make_case(rows=200, vocabulary=150)
    with LargestTensor() as seen:
        gradients(case, fused(case, chunk=chunk, tail=tail, temperature=temperature).loss)
    return seen.elements


@MODES
@TEMPERATURES
def test_tokens_times_vocabulary_never_exists(tail, temperature):
    assert largest(20, tail, temperature) == max(20 * 150, 200 * D, 150 * D, 200 * K)
    assert largest(200, tail, temperature) == 198 * 150  # the mode sees it where it is
