"""Floating-point operations that an update cannot do without: products over real tokens, padding and recomputation not counted.

A product with a weight of n elements takes 2n operations a token, as many for the gradient of its input and again for that of the
weight; what is frozen needs no gradient of its weights, and nothing needs the gradient of an input before the first trained weight.
"""

from collections.abc import Callable

from stage2_student.model.config import BlockStackConfig


def document_flops(config: BlockStackConfig, is_trained: Callable[[str], bool]) -> Callable[[int], float]:
    """Operations of one update for a document of so many input tokens."""
    weights, scores = _layer(config)
    below = config.norm == "post" and is_trained("boundary_norm.weight")  # whether something before a block is trained
    by_weight, by_score = 0.0, 0.0
    for index in range(config.active_blocks):
        trained = is_trained(f"blocks.{index}.")
        passes = 1 + (trained or below) + trained
        by_weight += 2 * config.layers_per_block * weights * passes
        by_score += config.layers_per_block * scores * (1 + 2 * (trained or below))
        below = below or trained
    head = 2 * config.hidden_size * config.vocab_size * (2 + is_trained("lm_head.weight"))
    return lambda length: by_weight * length + by_score * length**2 + head * (length - 1)


def _layer(config: BlockStackConfig) -> tuple[int, int]:
    """Elements of a decoder layer's matrices; operations of causal attention for each square of a length, forward."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    width = getattr(config, "head_dim", None) or hidden // heads
    attention = hidden * width * (2 * heads + 2 * config.num_key_value_heads)
    return attention + 3 * hidden * config.intermediate_size, 2 * heads * width
