"""The language-model head, which can hand its weight to a loss that never makes the logits."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class DistillationHead(nn.Linear):
    """Linear D -> V without bias.

    ZeRO-3 gathers a module's weight around that module's own forward: a fused loss that read `lm_head.weight` from
    outside would meet an empty tensor. So the loss comes in.
    """

    def __init__(self, hidden_size: int, vocab_size: int) -> None:
        super().__init__(hidden_size, vocab_size, bias=False)

    def forward(self, hidden: Tensor, loss_fn: Callable[[Tensor, Tensor], Any] | None = None) -> Any:
        """Return logits [B, T, V] of hidden [B, T, D]; with `loss_fn`, what it returns for (hidden, weight [V, D])."""
        return super().forward(hidden) if loss_fn is None else loss_fn(hidden, self.weight)
