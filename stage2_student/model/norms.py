"""RMSNorm that is exact in float64, for checking gradients, and transformers' own in every other precision.

Transformers' RMSNorm rounds to float32 inside, so a float64 model could not be compared with a float64 reference.
"""

from typing import Any

import torch
from torch import Tensor, nn


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension; statistics in at least float32.

    Bit-equal to transformers' Llama, Qwen2 and Qwen3 norms in bfloat16, float16 and float32; same parameter name.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, x: Tensor) -> Tensor:
        precise = x.to(torch.promote_types(x.dtype, torch.float32))
        variance = precise.pow(2).mean(-1, keepdim=True)
        return self.weight * (precise * torch.rsqrt(variance + self.variance_epsilon)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.variance_epsilon}"


def replace_norms(module: nn.Module, norm: type[Any]) -> None:
    """Swap the direct children of class `norm` (a family's q/k norms) for `RMSNorm`, under the same names, gains reset to one."""
    for name, child in list(module.named_children()):
        if isinstance(child, norm):
            setattr(module, name, RMSNorm(child.weight.shape[0], child.variance_epsilon))
