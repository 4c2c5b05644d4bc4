"""Attention over documents that lie one behind the other: nothing is padded, and none sees another.

Each document is a causal call of PyTorch's own attention, which on CUDA is FlashAttention: no mask, so none of N x N either.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

VARLEN = "varlen"
"""As `set_attn_implementation` takes it; without `document_lengths` it is "sdpa"."""


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    document_lengths: Sequence[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return [B, N, H, d] of query [B, H, N, d], key and value [B, H_kv, N, d]; with `document_lengths`, which add up to N, B is 1."""
    if document_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
    documents = zip(*(part.split(list(document_lengths), dim=2) for part in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, q, k, v, None, **kwargs)[0] for q, k, v in documents], dim=1), None


def positions(document_lengths: Sequence[int], device: torch.device) -> Tensor:
    """[1, N] int64: each token's place in its document."""
    return torch.cat([torch.arange(length, device=device) for length in document_lengths]).unsqueeze(0)


AttentionInterface.register(VARLEN, varlen_attention)
AttentionMaskInterface.register(VARLEN, sdpa_mask)
