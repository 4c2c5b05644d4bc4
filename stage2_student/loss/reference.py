"""The distillation loss in the open, on full logits: slow, obvious, differentiable by autograd. The fast one is tested against it."""

import torch
from torch import Tensor

from stage2_student.loss.targets import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail


def distillation_loss(
    logits: Tensor,
    labels: Tensor,
    targets: SparseTargets,
    *,
    alpha: float = 0.7,
    gamma: float = 0.3,
    temperature: float = 1.0,
    tail: Tail = "bucket",
    tokens: float | None = None,
) -> DistillationLoss:
    """alpha tau^2 KL(teacher || student) + gamma CE, both averaged over `tokens` (paper, 'Objective').

    `logits` [T, V], `labels` [T] with IGNORE_INDEX for rows that do not count. `tokens` is the number the sums are
    divided by, by default the rows that count; `targets` hold the teacher at `temperature`.
    """
    counted = labels != IGNORE_INDEX
    logits, labels, targets = logits[counted], labels[counted], targets.rows(counted)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    divisor = max(len(labels), 1) if tokens is None else tokens
    kl, entropy, student_tail = row_divergence(logits / temperature, targets, tail)
    ce = -logits.log_softmax(-1).gather(-1, labels[:, None]).sum()
    loss = (alpha * temperature**2 * kl.sum() + gamma * ce) / divisor
    return DistillationLoss(loss, *(part.detach().sum() / divisor for part in (kl, kl + entropy, ce, student_tail)))


def row_divergence(scaled: Tensor, targets: SparseTargets, tail: Tail) -> tuple[Tensor, Tensor, Tensor]:
    """Per row [T]: the divergence, the teacher's entropy in the same outcomes, the student's mass outside the entries."""
    q = targets.weights.to(scaled.dtype).masked_fill(~targets.valid, 0)
    log_p = scaled.log_softmax(-1).gather(-1, targets.ids)  # [T, K]
    log_p_tail = log_tail(scaled, targets) - scaled.logsumexp(-1)  # [T]
    if tail == "renormalize":
        log_p = log_p - log_p.masked_fill(~targets.valid, torch.finfo(log_p.dtype).min).logsumexp(-1, keepdim=True)
    if tail.startswith("renormalize"):  # of nothing, in a row without entries: 0
        q = q / q.sum(-1, keepdim=True).clamp_min(torch.finfo(q.dtype).tiny)
    kl = (torch.xlogy(q, q) - q * log_p).sum(-1)
    entropy = -torch.xlogy(q, q).sum(-1)
    if tail == "bucket":
        q_tail = targets.tail_mass.to(scaled.dtype)
        kl = kl + torch.xlogy(q_tail, q_tail) - q_tail * log_p_tail.where(q_tail > 0, 0)
        entropy = entropy - torch.xlogy(q_tail, q_tail)
    return kl, entropy, log_p_tail.exp()


def log_tail(scaled: Tensor, targets: SparseTargets) -> Tensor:
    """[T] log-sum-exp over the ids that are not kept, never log(1 - sum): the difference cancels where it matters."""
    rows = torch.arange(len(scaled), device=scaled.device)[:, None].expand_as(targets.ids)[targets.valid]
    masked = scaled.index_put((rows, targets.ids[targets.valid]), scaled.new_tensor(-torch.inf))
    return masked.logsumexp(-1)
