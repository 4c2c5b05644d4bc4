"""The distillation loss from hidden states: [tokens, vocabulary] never exists, and gradients are made in the forward pass.

A chunk of rows at a time: logits, one log-sum-exp, the gradient in place of the logits, two products back. With
p = softmax(z / tau) and q on the kept set K, d loss / d z of a row is a dense multiple of p plus a sparse part:

    bucket      off K  alpha tau (1 - q_T / p_T) p        on K  alpha tau (p - q)
    sampled            alpha tau sum(w) p                 on K  - alpha tau w
    renormalize on K   alpha tau (p / P_K - q / m)        off K 0
    one-sided          alpha tau p                        on K  - alpha tau q / m

and gamma (softmax(z) - e_y) on top; at tau = 1 both dense terms are one. Peak memory over the inputs: two chunks of
[chunk, V] in float32 and one float32 copy of the head's gradient.
"""

from typing import Any

import torch
from torch import Tensor

from stage2_student.loss.targets import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail


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
    least float32, float64 for float64 inputs; the head's gradient is accumulated in that precision too.
    """
    counted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    divisor = float(max(len(counted), 1) if tokens is None else tokens)
    parts = _Chunked.apply(
        hidden[counted], head_weight, labels[counted], targets.rows(counted), _Weights(alpha, gamma, temperature, tail, divisor), chunk
    )
    return DistillationLoss(*parts)


class _Weights:
    """The scalars of one loss call."""

    def __init__(self, alpha: float, gamma: float, temperature: float, tail: Tail, divisor: float) -> None:
        self.alpha, self.gamma, self.temperature, self.tail, self.divisor = alpha, gamma, temperature, tail, divisor


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, targets: SparseTargets, w: _Weights, chunk: int) -> tuple[Tensor, ...]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros(weight.shape, dtype=precise, device=weight.device)
        sums = torch.zeros(4, dtype=torch.float64, device=hidden.device)  # kl, kd, ce, student tail
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = (hidden[rows] @ weight.T).to(precise)
            part, gradient = _chunk_gradient(logits, labels[rows], targets.rows(rows), w)
            sums += part
            gradient = gradient.to(hidden.dtype)
            d_hidden[rows] = gradient @ weight
            d_weight += gradient.T @ hidden[rows]
        ctx.save_for_backward(d_hidden, d_weight.to(weight.dtype))
        kl, kd, ce, student_tail = sums / w.divisor
        loss = (w.alpha * w.temperature**2 * kl + w.gamma * ce).to(precise)
        ctx.mark_non_differentiable(kl, kd, ce, student_tail)
        return loss, kl, kd, ce, student_tail

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * upstream.to(d_hidden.dtype), d_weight * upstream.to(d_weight.dtype), None, None, None, None


def _chunk_gradient(logits: Tensor, labels: Tensor, targets: SparseTargets, w: _Weights) -> tuple[Tensor, Tensor]:
    """Sums over C rows, and the gradient [C, V] of the loss by the logits; the memory of `logits` is used up."""
    if w.temperature == 1.0:
        label_logit = logits.gather(-1, labels[:, None])[:, 0]
        kl_part, gradient, log_normalizer = _divergence_gradient(logits, targets, w, extra=w.gamma)
        ce = (log_normalizer - label_logit).sum()
    else:
        log_normalizer = logits.logsumexp(-1, keepdim=True)
        ce = (log_normalizer - logits.gather(-1, labels[:, None])).sum()
        plain = (logits - log_normalizer).exp_().mul_(w.gamma)
        kl_part, gradient, _ = _divergence_gradient(logits.div_(w.temperature), targets, w, extra=0.0)
        gradient += plain
    gradient.scatter_add_(-1, labels[:, None], gradient.new_full((len(labels), 1), -w.gamma))
    kl, kd, student_tail = kl_part
    return torch.stack([kl, kd, ce, student_tail]).double(), gradient.div_(w.divisor)


def _divergence_gradient(z: Tensor, targets: SparseTargets, w: _Weights, *, extra: float) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
    """(kl, kd, student tail) sums, [C, V] alpha tau dKL/dz + extra p, and [C] log-normalisers, for z = logits / tau."""
    scale = w.alpha * w.temperature
    q = targets.weights.to(z.dtype).masked_fill(~targets.valid, 0)
    z_kept = z.gather(-1, targets.ids)
    kept_logsum = z_kept.masked_fill(~targets.valid, -torch.inf).logsumexp(-1)
    log_tail = _mask_kept(z, targets, z.new_tensor(-torch.inf)).logsumexp(-1)
    log_normalizer = torch.logaddexp(log_tail, kept_logsum)
    log_p = z_kept - log_normalizer[:, None]
    log_p_tail = log_tail - log_normalizer
    if w.tail.startswith("renormalize"):
        q = q / q.sum(-1, keepdim=True)
    dense, kept_p = torch.full_like(log_p_tail, extra), torch.full_like(log_p_tail, extra)  # multiples of p off and on K
    divergence_log_p = log_p
    if w.tail == "renormalize":
        divergence_log_p = z_kept - kept_logsum[:, None]
        kept_p = kept_p + scale * (log_normalizer - kept_logsum).exp()
    elif w.tail == "bucket":
        q_tail = targets.tail_mass.to(z.dtype)
        ratio = (q_tail.log() - log_p_tail).exp().where(q_tail > 0, 0)
        dense, kept_p = dense + scale * (1 - ratio), kept_p + scale
    else:
        mass = q.sum(-1)
        dense, kept_p = dense + scale * mass, kept_p + scale * mass
    entropy = -torch.xlogy(q, q).sum(-1)
    kd = -(q * divergence_log_p).sum(-1)
    if w.tail == "bucket":
        entropy = entropy - torch.xlogy(q_tail, q_tail)
        kd = kd - (q_tail * log_p_tail).where(q_tail > 0, 0)
    gradient = z.sub_(log_normalizer[:, None]).exp_().mul_(dense[:, None])  # 0 on K, where z is -inf
    on_kept = (log_p.exp() * kept_p[:, None] - scale * q).masked_fill(~targets.valid, 0)
    gradient.scatter_add_(-1, targets.ids, on_kept)
    return ((kd - entropy).sum(), kd.sum(), log_p_tail.exp().sum()), gradient, log_normalizer


def _mask_kept(z: Tensor, targets: SparseTargets, value: Tensor) -> Tensor:
    rows = torch.arange(len(z), device=z.device)[:, None].expand_as(targets.ids)[targets.valid]
    return z.index_put_((rows, targets.ids[targets.valid]), value)
