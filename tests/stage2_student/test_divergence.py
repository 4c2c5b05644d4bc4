"""What the loss's values mean: torch's own KL, bounds, zero at equality, scale in the temperature (field cases 12 to 16)."""

import pytest
import torch
from losses import Case, K, V, fused, full_targets, generator, make_case, reference, top_targets
from torch.nn.functional import cross_entropy, kl_div

from stage2_student.loss import SparseTargets, distillation_loss, fused_distillation_loss

BOTH = pytest.mark.parametrize("loss", [reference, fused])
TEMPERATURES = pytest.mark.parametrize("temperature", [1.0, 2.0])
ROWS = 19


def student_and_teacher(seed: int = 0) -> tuple[Case, torch.Tensor, torch.Tensor]:
    """A case with every label, the student's logits and a teacher's [T, V]."""
    case = make_case(seed=seed, rows=ROWS)
    case = case._replace(labels=torch.randint(V, (ROWS,), generator=generator(1)))
    return case, (case.hidden @ case.weight.T).detach(), 2 * torch.randn(ROWS, V, generator=generator(2), dtype=torch.float64)


@BOTH
@TEMPERATURES
@pytest.mark.parametrize("tail", ["bucket", "renormalize", "renormalize_one_sided", "sampled"])
def test_with_everything_kept_it_is_torchs_kl(loss, temperature, tail):
    case, mine, teacher = student_and_teacher()
    value = loss(case._replace(targets=full_targets(teacher / temperature)), temperature=temperature, tail=tail)
    p, q = (mine / temperature).log_softmax(-1), (teacher / temperature).log_softmax(-1)
    expected = kl_div(p, q, reduction="batchmean", log_target=True)
    entropy = -(q.exp() * q).sum(-1).mean()
    assert torch.isclose(value.kl, expected, rtol=1e-12) and expected > 0.1
    assert torch.isclose(value.kd, expected + entropy, rtol=1e-12)
    assert torch.isclose(value.ce, cross_entropy(mine, case.labels), rtol=1e-12)
    assert torch.isclose(value.loss, 0.7 * temperature**2 * value.kl + 0.3 * value.ce, rtol=1e-12)
    assert value.student_tail_mass == 0


@BOTH
@pytest.mark.parametrize("seed", range(5))
def test_the_buckets_kl_is_a_lower_bound_that_grows_with_k(loss, seed):
    case, mine, teacher = student_and_teacher(seed)
    full = kl_div(mine.log_softmax(-1), teacher.log_softmax(-1), reduction="batchmean", log_target=True)
    values = [loss(case._replace(targets=top_targets(teacher, k))).kl.item() for k in (1, 3, K, V - 2)]
    assert values[0] >= 0 and values == sorted(values) and values[-1] <= full.item()


@BOTH
@TEMPERATURES
@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
@pytest.mark.parametrize("k", [1, K, V])
def test_kl_of_a_distribution_with_itself_is_zero(loss, temperature, tail, k):
    """And so is its gradient: maxtext#4056."""
    case, mine, _ = student_and_teacher()
    targets = full_targets(mine / temperature) if k == V else top_targets(mine / temperature, k)
    value = loss(case._replace(targets=targets), tail=tail, temperature=temperature, alpha=1.0, gamma=0.0)
    grads = torch.autograd.grad(value.loss, [case.hidden, case.weight])
    assert abs(value.kl) < 1e-12
    assert all(grad.abs().max() < 1e-11 for grad in grads)


def test_the_one_sided_form_is_no_divergence():
    case, mine, _ = student_and_teacher()
    assert fused(case._replace(targets=top_targets(mine)), tail="renormalize_one_sided").kl > 0.01


def drawn_targets(p: torch.Tensor, draws: int, seed: int) -> SparseTargets:
    """`draws` ids of each row, drawn with p; equal ids are one entry of weight count / draws."""
    ids = torch.multinomial(p, draws, replacement=True, generator=generator(seed))
    weights = torch.zeros_like(p).scatter_add_(-1, ids, torch.full_like(ids, 1 / draws, dtype=p.dtype))
    order = weights.argsort(-1, descending=True)[:, :draws]
    kept = weights.gather(-1, order)
    return SparseTargets(order, kept, kept > 0, torch.zeros(len(p), dtype=p.dtype))


@BOTH
def test_the_mean_gradient_of_sampled_targets_is_zero_at_the_teacher(loss):
    """Each draw's is not; the mean over n falls as 1 / sqrt(n)."""
    case, mine, _ = student_and_teacher()
    hidden, p, total, squares, draws = mine.requires_grad_(), mine.detach().softmax(-1), 0.0, 0.0, 250
    for seed in range(draws):
        one = Case(hidden, torch.eye(V, dtype=torch.float64), case.labels, drawn_targets(p, K, seed))
        (grad,) = torch.autograd.grad(loss(one, tail="sampled", alpha=1.0, gamma=0.0).loss, [hidden])
        total, squares = total + grad, squares + grad.square()
    spread = (squares / draws).sqrt() / draws**0.5  # of the mean, were its expectation zero
    assert grad.abs().max() > 1e-3
    sigmas = ((total / draws).abs() / spread.clamp_min(1e-6))[p > 0.01]
    assert sigmas.max() < 5 and sigmas.square().mean() < 1.6


@pytest.mark.parametrize("tail", ["bucket", "renormalize", "renormalize_one_sided", "sampled"])
def test_tau_squared_stands_in_front(tail):
    """distiller#122. With z = tau u and the teacher's p fixed, KL is that of u: the gradient by z is tau times the one by u."""
    case, mine, teacher = student_and_teacher()
    targets, grads = top_targets(teacher), {}
    for tau in (1.0, 2.0, 8.0):
        z = (tau * mine).requires_grad_()
        options = {"tail": tail, "temperature": tau, "alpha": 1.0, "gamma": 0.0, "chunk": 7}
        value = fused_distillation_loss(z, torch.eye(V, dtype=z.dtype), case.labels, targets, **options)
        assert torch.isclose(value.loss, tau**2 * value.kl, rtol=1e-12)
        (grads[tau],) = torch.autograd.grad(value.loss, [z])
    assert torch.allclose(grads[2.0], 2 * grads[1.0], rtol=1e-9, atol=1e-14)
    assert torch.allclose(grads[8.0], 8 * grads[1.0], rtol=1e-9, atol=1e-14)


@BOTH
def test_the_label_term_does_not_know_the_temperature(loss):
    case, mine, _ = student_and_teacher()
    for tau in (1.0, 3.0):
        value = loss(case, alpha=0.0, gamma=1.0, temperature=tau)
        assert torch.isclose(value.loss, cross_entropy(mine, case.labels), rtol=1e-12)


def test_no_value_is_clamped():
    """verl#7855: with a teacher whose weights are no distribution the bucket's value may be negative, and then it shows."""
    logits = torch.zeros(1, V, dtype=torch.float64)
    ids, valid = torch.tensor([[0]]), torch.ones(1, 1, dtype=torch.bool)
    targets = SparseTargets(ids, torch.tensor([[0.01]]), valid, torch.tensor([0.0]))
    assert distillation_loss(logits, torch.tensor([0]), targets).kl < 0
