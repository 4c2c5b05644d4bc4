"""What a row's loss and gradient are once its log-sum-exps are known: everything of size [rows, kept entries].

The student is seen as K kept outcomes and a tail. With p the student, q the teacher, p_T and q_T their tails, m and P_K
what they have on K, and s = alpha tau, the KL's gradient by the logits (divided by the temperature) is

    tail          of the tail as one outcome   of a kept entry
    bucket        s (p_T - q_T)                s (p - q)
    sampled       s sum(w) p_T                 s (sum(w) p - w)
    renormalize   0                            s (p / P_K - q / m)
    one-sided     s p_T                        s (p - q / m)

and that of the cross-entropy gamma p_T and gamma p, less gamma at the label. An id in the tail has its share of the
tail's, exp(z - log-sum-exp of the tail): the one dense term. The tail's mass is never 1 - sum(p), and nothing is
divided by it.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stage2_student.loss.targets import SparseTargets, Tail


class Weights(NamedTuple):
    """The scalars of one loss call."""

    alpha: float
    gamma: float
    temperature: float
    tail: Tail
    divisor: float


class Student(NamedTuple):
    """What C rows of the student put on the kept entries and on the rest."""

    log_p: Tensor  # [C, K]
    log_p_tail: Tensor  # [C]
    log_p_kept: Tensor  # [C]: all of K together
    log_normalizer: Tensor  # [C]


class Gradient(NamedTuple):
    """By a row's logits: `tail` is spread over the ids that are not kept."""

    tail: Tensor  # [C]
    kept: Tensor  # [C, K]

    def plus(self, other: "Gradient") -> "Gradient":
        return Gradient(self.tail + other.tail, self.kept + other.kept)


def student_rows(z_kept: Tensor, valid: Tensor, log_tail: Tensor) -> Student:
    """`z_kept` [C, K] logits of the entries, `log_tail` [C] log-sum-exp of all others."""
    kept = z_kept.masked_fill(~valid, torch.finfo(z_kept.dtype).min).logsumexp(-1)  # finite in a row without entries
    log_normalizer = torch.logaddexp(log_tail, kept)
    return Student(z_kept - log_normalizer[:, None], log_tail - log_normalizer, kept - log_normalizer, log_normalizer)


def teacher_rows(targets: SparseTargets, tail: Tail, dtype: torch.dtype) -> Tensor:
    """[C, K] the teacher's weights, 0 for padding, renormalised over K where the mode says so; a row without entries stays 0."""
    q = targets.weights.to(dtype).masked_fill(~targets.valid, 0)
    return q / q.sum(-1, keepdim=True).clamp_min(torch.finfo(dtype).tiny) if tail.startswith("renormalize") else q


def divergence_gradient(student: Student, q: Tensor, targets: SparseTargets, w: Weights) -> Gradient:
    """alpha tau^2 dKL/dz: the table at the top of this file."""
    p, p_tail, strength = student.log_p.exp(), student.log_p_tail.exp(), w.alpha * w.temperature / w.divisor
    if w.tail == "bucket":
        return _scaled(strength, p_tail - targets.tail_mass.to(q.dtype), p - q, targets)
    if w.tail == "renormalize":
        return _scaled(strength, torch.zeros_like(p_tail), (student.log_p - student.log_p_kept[:, None]).exp() - q, targets)
    mass = q.sum(-1)
    return _scaled(strength, mass * p_tail, mass[:, None] * p - q, targets)


def cross_entropy_gradient(student: Student, targets: SparseTargets, w: Weights) -> Gradient:
    """gamma dCE/dz, without the label's own part."""
    return _scaled(w.gamma / w.divisor, student.log_p_tail.exp(), student.log_p.exp(), targets)


def _scaled(strength: float, tail: Tensor, kept: Tensor, targets: SparseTargets) -> Gradient:
    return Gradient(strength * tail, (strength * kept).masked_fill(~targets.valid, 0))


def divergence_sums(student: Student, q: Tensor, targets: SparseTargets, tail: Tail) -> tuple[Tensor, Tensor, Tensor]:
    """Sums over rows: divergence, its cross-entropy form, the student's mass outside K."""
    log_p = student.log_p - student.log_p_kept[:, None] if tail == "renormalize" else student.log_p
    cross, entropy = -(q * log_p).sum(-1), -torch.xlogy(q, q).sum(-1)
    if tail == "bucket":
        q_tail = targets.tail_mass.to(q.dtype)
        cross = cross - (q_tail * student.log_p_tail).where(q_tail > 0, 0)
        entropy = entropy - torch.xlogy(q_tail, q_tail)
    return (cross - entropy).sum(), cross.sum(), student.log_p_tail.exp().sum()
