"""Tiny teachers and students for the tests of this folder."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.families import find_family
from stage2_student.model.initialization import build_student
from stage2_student.model.student import BlockStackForCausalLM

VOCABULARY, HIDDEN = 61, 32
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": 48,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}


def tiny_teacher(family: str = "qwen3", **changes) -> PreTrainedModel:
    """A teacher of 6 layers whose every parameter, gains and biases too, is random."""
    torch.manual_seed(0)
    sizes = SIZES | ({"head_dim": 8} if family == "qwen3" else {}) | changes
    teacher = find_family(family).causal_lm(find_family(family).config(**sizes)).eval()
    shake(teacher)
    return teacher


@torch.no_grad()
def shake(model: nn.Module, scale: float = 0.3) -> None:
    """Move every parameter, so that no gain is one, no bias zero and every layer matters at this width."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        parameter += scale * torch.randn(parameter.shape, generator=generator)


def interface(teacher: PreTrainedModel) -> dict[str, Tensor]:
    tensors = {"embed_tokens.weight": teacher.model.embed_tokens.weight, "norm.weight": teacher.model.norm.weight}
    return tensors if teacher.config.tie_word_embeddings else tensors | {"lm_head.weight": teacher.lm_head.weight}


def config_for(teacher: PreTrainedModel, **changes) -> BlockStackConfig:
    shape = {"blocks": 3, "layers_per_block": 2, "norm": "pre", "active_blocks": 3, "initializer_range": 0.2, "seed": 42}
    return BlockStackConfig.from_teacher(teacher.config, **shape | changes)


def tiny_student(family: str = "qwen3", **changes) -> BlockStackForCausalLM:
    teacher = tiny_teacher(family)
    return build_student(config_for(teacher, **changes), interface(teacher)).eval()


def with_weights(config: BlockStackConfig, state: dict[str, Tensor]) -> BlockStackForCausalLM:
    model = BlockStackForCausalLM(config).to(state["lm_head.weight"].dtype)
    model.load_state_dict(state)
    return model.eval()


def tokens(batch: int = 2, time: int = 11) -> Tensor:
    return torch.randint(VOCABULARY, (batch, time), generator=torch.Generator().manual_seed(2))  # [B, T]
