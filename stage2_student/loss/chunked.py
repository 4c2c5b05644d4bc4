"""The distillation loss from hidden states: [tokens, vocabulary] never exists, and gradients are made in the forward pass.

A chunk of rows at a time: logits, one exponential in place, the gradient in the same memory, two products back. With
p = softmax(z / tau), q on the kept set K, P_K and m the student's and the teacher's mass there, d loss / d z of a row is
a multiple of p off K, another on K, and a sparse part:

    tail          off K                          on K               sparse, on K
    bucket        alpha tau (1 - q_T / p_T) p    alpha tau p        - alpha tau q
    sampled       alpha tau sum(w) p             the same           - alpha tau w
    renormalize   0                              alpha tau p / P_K  - alpha tau q / m
    one-sided     alpha tau p                    the same           - alpha tau q / m

and gamma (softmax(z) - e_y) on top; at tau = 1 both dense terms are one. Peak memory over the inputs: [chunk, V] twice
and the head's gradient once, in float32.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from stage2_student.loss.targets import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail


class Weights(NamedTuple):
    """The scalars of one loss call."""

    alpha: float
    gamma: float
    temperature: float
    tail: Tail
    divisor: float


def fused_distillation_loss(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    targets: SparseTargets,
    *,
    alpha: float = 0.7,
    gamma: float = 0.3,
    temperature: float = 1.0,
    tail: Tail = "bucket",
    tokens: float | None = None,
    chunk: int = 1024,
) -> DistillationLoss:
    """`distillation_loss` of `hidden @ head_weight.T`, `chunk` rows at a time.

    `hidden` [T, D], `head_weight` [V, D]; the rest as in `distillation_loss`. Log-sum-exps and coefficients are at
    least float32, float64 for float64 inputs; the head's gradient is accumulated in that precision too. Without a
    gradient to make, the products back are left out.
    """
    counted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    divisor = float(max(len(counted), 1) if tokens is None else tokens)
    weights = Weights(alpha, gamma, temperature, tail, divisor)
    inputs = (hidden[counted], head_weight, labels[counted], targets.rows(counted), weights, chunk)
    return DistillationLoss(*_Chunked.apply(*inputs, torch.is_grad_enabled()))


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, targets: SparseTargets, w: Weights, chunk: int, training: bool
    ) -> tuple[Tensor, ...]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        d_hidden = torch.empty_like(hidden) if training else None
        wanted = training and ctx.needs_input_grad[1]  # a frozen head needs none
        d_weight = torch.zeros(weight.shape, dtype=precise, device=weight.device) if wanted else None
        sums = torch.zeros(4, dtype=torch.float64, device=hidden.device)  # kl, kd, ce, student tail
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = _product(hidden[rows], weight.T, precise)
            part, gradient = _chunk(logits, labels[rows], targets.rows(rows), w)
            sums += part
            if d_hidden is not None:
                gradient = gradient.to(hidden.dtype)
                d_hidden[rows] = gradient @ weight
                if d_weight is not None:
                    _add_product(d_weight, gradient.T, hidden[rows])
        ctx.save_for_backward(d_hidden, None if d_weight is None else d_weight.to(weight.dtype))
        kl, kd, ce, student_tail = sums / w.divisor
        loss = (w.alpha * w.temperature**2 * kl + w.gamma * ce).to(precise)
        ctx.mark_non_differentiable(kl, kd, ce, student_tail)
        return loss, kl, kd, ce, student_tail

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        d_weight = None if d_weight is None else d_weight * upstream.to(d_weight.dtype)
        return d_hidden * upstream.to(d_hidden.dtype), d_weight, None, None, None, None, None


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right in `dtype`: logits that were rounded to bfloat16 would cost more than all of the cache's coding."""
    if left.dtype == dtype:
        return left @ right
    if left.is_cuda:
        return torch.mm(left, right, out_dtype=dtype)  # accumulated and kept in float32 by the tensor cores
    return left.to(dtype) @ right.to(dtype)


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, in total's precision."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += _product(left, right, total.dtype)


def _chunk(logits: Tensor, labels: Tensor, targets: SparseTargets, w: Weights) -> tuple[Tensor, Tensor]:
    """Sums (kl, kd, ce, student tail) over C rows, and the gradient [C, V] of the loss by the logits, in their memory."""
    label_logit = logits.gather(-1, labels[:, None])[:, 0]
    if w.temperature == 1.0:
        divergence, gradient, log_normalizer = _divergence(logits, targets, w, extra=w.gamma)
    else:
        log_normalizer = logits.logsumexp(-1)
        plain = (logits - log_normalizer[:, None]).exp_().mul_(w.gamma / w.divisor)
        divergence, gradient, _ = _divergence(logits.div_(w.temperature), targets, w, extra=0.0)
        gradient += plain
    gradient.scatter_add_(-1, labels[:, None], gradient.new_full((len(labels), 1), -w.gamma / w.divisor))
    kl, kd, student_tail = divergence
    return torch.stack([kl, kd, (log_normalizer - label_logit).sum(), student_tail]).double(), gradient


class _Student(NamedTuple):
    """What C rows of the student put on the kept entries and on the rest."""

    log_p: Tensor  # [C, K]
    log_p_tail: Tensor  # [C]
    log_p_kept: Tensor  # [C]: all of K together
    log_normalizer: Tensor  # [C]


def _divergence(z: Tensor, targets: SparseTargets, w: Weights, *, extra: float) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """Sums (kl, kd, student tail), [C, V] (alpha tau dKL/dz + extra p) / divisor, [C] log-normalisers; z = logits / tau is used up."""
    z_kept = z.gather(-1, targets.ids)
    kept = z_kept.masked_fill(~targets.valid, -torch.inf).logsumexp(-1)
    # With K masked the maximum is the tail's own, so its sum keeps full precision however small the tail is.
    rows = torch.arange(len(z), device=z.device)[:, None].expand_as(targets.ids)[targets.valid]
    z.index_put_((rows, targets.ids[targets.valid]), z.new_tensor(-torch.inf))
    largest = z.amax(-1).clamp_min(torch.finfo(z.dtype).min)
    exponential = z.sub_(largest[:, None]).exp_()
    tail = largest + exponential.sum(-1).log()
    log_normalizer = torch.logaddexp(tail, kept)
    student = _Student(z_kept - log_normalizer[:, None], tail - log_normalizer, kept - log_normalizer, log_normalizer)
    q = teacher_weights(targets, w.tail, z.dtype)
    off_kept, on_kept = _dense_coefficients(student, targets, w, q)
    gradient = exponential.mul_(((off_kept + extra) * (largest - log_normalizer).exp() / w.divisor)[:, None])
    sparse = (student.log_p.exp() * (on_kept + extra)[:, None] - w.alpha * w.temperature * q).masked_fill(~targets.valid, 0)
    gradient.scatter_add_(-1, targets.ids, sparse / w.divisor)
    return _values(student, targets, w.tail, q), gradient, log_normalizer


def teacher_weights(targets: SparseTargets, tail: Tail, dtype: torch.dtype) -> Tensor:
    """[C, K] the teacher's weights, 0 for padding, renormalised over K where the mode says so."""
    q = targets.weights.to(dtype).masked_fill(~targets.valid, 0)
    return q / q.sum(-1, keepdim=True) if tail.startswith("renormalize") else q


def _dense_coefficients(student: _Student, targets: SparseTargets, w: Weights, q: Tensor) -> tuple[Tensor, Tensor]:
    """[C] multiples of p off K and on K: the table at the top of this file."""
    one = torch.full_like(student.log_p_tail, w.alpha * w.temperature)
    if w.tail == "bucket":
        q_tail = targets.tail_mass.to(one.dtype)
        ratio = (q_tail.log() - student.log_p_tail).exp().where(q_tail > 0, 0)
        return one * (1 - ratio), one
    if w.tail == "renormalize":
        return torch.zeros_like(one), one * (-student.log_p_kept).exp()
    mass = q.sum(-1)  # 1 for the one-sided form
    return one * mass, one * mass


def _values(student: _Student, targets: SparseTargets, tail: Tail, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over rows: divergence, its cross-entropy form, the student's mass outside K."""
    log_p = student.log_p - student.log_p_kept[:, None] if tail == "renormalize" else student.log_p
    cross, entropy = -(q * log_p).sum(-1), -torch.xlogy(q, q).sum(-1)
    if tail == "bucket":
        q_tail = targets.tail_mass.to(q.dtype)
        cross = cross - (q_tail * student.log_p_tail).where(q_tail > 0, 0)
        entropy = entropy - torch.xlogy(q_tail, q_tail)
    return (cross - entropy).sum(), cross.sum(), student.log_p_tail.exp().sum()
