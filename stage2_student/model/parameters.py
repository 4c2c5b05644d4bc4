"""What a student of a given config weighs, counted on its modules and not from a formula."""

from typing import Any

import torch
from torch import nn

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.student import BlockStackForCausalLM


def count_parameters(config: BlockStackConfig) -> dict[str, Any]:
    """Count parameters by part on the meta device; no weight is allocated.

    `per_block` has one number for each active block and `decoder` is their sum; `trainable` is all but the embedding.
    """
    with torch.device("meta"):
        model = BlockStackForCausalLM(config)
    per_block = [_size(block) for block in model.blocks]
    return {
        "embedding": _size(model.embed_tokens),
        "head": _size(model.lm_head),
        "boundary_norm": _size(model.boundary_norm),
        "per_block": per_block,
        "decoder": sum(per_block),
        "total": _size(model),
        "trainable": sum(p.numel() for p in model.parameters() if p.requires_grad),
    }


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to: block_0, block_1, ..., embedding, boundary_norm or head."""
    first, _, rest = name.partition(".")
    return f"block_{rest.partition('.')[0]}" if first == "blocks" else {"embed_tokens": "embedding", "lm_head": "head"}.get(first, first)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
