"""Decoder layers that differ only in where their two norms stand, and the block of L such layers."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.families import find_family
from stage2_student.model.norms import RMSNorm, replace_norms


class DecoderLayer(GradientCheckpointingLayer):
    """The parts both placements share: the family's attention and MLP, and norms N1 (`attention_norm`), N2 (`mlp_norm`)."""

    def __init__(self, config: BlockStackConfig, layer_idx: int) -> None:
        super().__init__()
        family = find_family(config.family)
        self.self_attn = family.attention(config, layer_idx)
        self.mlp = family.mlp(config)
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        replace_norms(self.self_attn, family.norm)

    def attend(self, h: Tensor, **attention: Any) -> Tensor:
        return self.self_attn(h, **attention)[0]


class PreNormLayer(DecoderLayer):
    """h' = Attn(N1(h)) + h;  out = MLP(N2(h')) + h'  (the teacher's own placement)."""

    def forward(self, h: Tensor, **attention: Any) -> Tensor:
        h = self.attend(self.attention_norm(h), **attention) + h
        return self.mlp(self.mlp_norm(h)) + h


class PostNormLayer(DecoderLayer):
    """u = Attn(h) + h;  h' = N1(u);  v = MLP(h') + h';  out = N2(v)  (the original Transformer's, not OLMo 2's x + N(f(x)))."""

    def forward(self, h: Tensor, **attention: Any) -> Tensor:
        h = self.attention_norm(self.attend(h, **attention) + h)
        return self.mlp_norm(self.mlp(h) + h)


PLACEMENTS: dict[str, type[DecoderLayer]] = {"pre": PreNormLayer, "post": PostNormLayer}


class Block(nn.Module):
    """L consecutive decoder layers; block `index` of the stack, which fixes the layers' places in the KV cache."""

    def __init__(self, config: BlockStackConfig, index: int) -> None:
        super().__init__()
        layer, first = PLACEMENTS[config.norm], index * config.layers_per_block
        self.layers = nn.ModuleList(layer(config, first + i) for i in range(config.layers_per_block))

    def forward(self, h: Tensor, **attention: Any) -> Tensor:
        """Map the residual stream [B, T, D] to the next block boundary; `attention` goes to the family's attention."""
        for layer in self.layers:
            h = layer(h, **attention)
        return h
