"""The distillation loss: a reference on full logits, and one from hidden states that never makes them."""

from stage2_student.loss.fused import fused_distillation_loss
from stage2_student.loss.reference import distillation_loss
from stage2_student.loss.targets import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail

__all__ = ["IGNORE_INDEX", "DistillationLoss", "SparseTargets", "Tail", "distillation_loss", "fused_distillation_loss"]
