"""What a loss sees of the teacher: kept entries of each row, padded to one width. It cannot tell a cache from a live teacher."""

from typing import Literal, NamedTuple

from torch import Tensor

IGNORE_INDEX = -100

Tail = Literal["bucket", "sampled", "renormalize", "renormalize_one_sided"]
"""How the mass outside the kept entries enters the loss.

    bucket                  one more outcome ("ghost token"): KL of the coarsened distribution, a lower bound of the full one
    sampled                 entries carry unbiased sampling weights; nothing is missing in expectation
    renormalize             teacher and student both renormalised over the kept entries; a baseline, biased
    renormalize_one_sided   teacher renormalised, student over the vocabulary; a cross-entropy in disguise, a baseline
"""


class SparseTargets(NamedTuple):
    """T rows of K entries; padded entries have `valid` False and any id inside the vocabulary.

    Valid ids of a row differ, and its weights and tail mass add up to 1 (in expectation for `sampled`).

    Attributes:
        ids: [T, K] int64.
        weights: [T, K] probabilities, or sampling weights for `sampled`.
        valid: [T, K] bool.
        tail_mass: [T] mass outside the entries.
    """

    ids: Tensor
    weights: Tensor
    valid: Tensor
    tail_mass: Tensor

    def rows(self, chosen: slice | Tensor) -> "SparseTargets":
        return SparseTargets(*(part[chosen] for part in self))


class DistillationLoss(NamedTuple):
    """Sums over rows divided by `tokens`, in nats; only `loss` carries a gradient.

    Attributes:
        loss: alpha tau^2 KL + gamma CE (the paper's objective).
        kl: the divergence of the tail mode, at the temperature; its kind is the mode's name.
        kd: the cross-entropy form, KL plus the teacher's (coarsened) entropy; the paper's "KD loss".
        ce: cross-entropy with the labels, at temperature 1.
        student_tail_mass: mean student mass outside the kept entries, at the temperature.
    """

    loss: Tensor
    kl: Tensor
    kd: Tensor
    ce: Tensor
    student_tail_mass: Tensor
