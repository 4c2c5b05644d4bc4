"""The teacher families a student can be built for, each with transformers' own sub-layers.

A student differs from its teacher only in where the norms stand, so everything else is the family's code: SDPA,
FlashAttention and later kernels come with it.
"""

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen2 import modeling_qwen2 as qwen2
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from pipeline.contract.errors import TeacherError


@dataclass(frozen=True)
class Family:
    """One architecture: its config class and the sub-layers that are built from such a config."""

    config: type[PreTrainedConfig]
    attention: type[nn.Module]
    mlp: type[nn.Module]
    norm: type[nn.Module]
    rotary: type[nn.Module]
    causal_lm: type[PreTrainedModel]


FAMILIES: dict[str, Family] = {
    "llama": Family(
        llama.LlamaConfig, llama.LlamaAttention, llama.LlamaMLP, llama.LlamaRMSNorm, llama.LlamaRotaryEmbedding, llama.LlamaForCausalLM
    ),
    "qwen2": Family(
        qwen2.Qwen2Config, qwen2.Qwen2Attention, qwen2.Qwen2MLP, qwen2.Qwen2RMSNorm, qwen2.Qwen2RotaryEmbedding, qwen2.Qwen2ForCausalLM
    ),
    "qwen3": Family(
        qwen3.Qwen3Config, qwen3.Qwen3Attention, qwen3.Qwen3MLP, qwen3.Qwen3RMSNorm, qwen3.Qwen3RotaryEmbedding, qwen3.Qwen3ForCausalLM
    ),
}


def find_family(model_type: str) -> Family:
    """Look a family up by the `model_type` of the teacher's config.json.

    Raises:
        TeacherError: no student can be built for this family.
    """
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise TeacherError(f"teacher model_type={model_type!r}: a student needs one of {known}; choose a teacher of these families")
    return FAMILIES[model_type]
