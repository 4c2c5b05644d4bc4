"""Rotary position embedding whose frequencies no cast of the model can round.

Transformers keeps the inverse frequencies in a buffer: `model.to(bfloat16)`, which DeepSpeed's engine does, rounds them
to 8 bits, wrong by whole turns at position 8192. Here they are not a buffer but recomputed where and when needed, which
also lets a model be built on the meta device and be exact in float64.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from pipeline.contract.errors import TeacherError

# The others change their frequencies with the length of the batch, so a document's logits would depend on its neighbours.
STATIC_ROPE_TYPES = ("default", "linear", "llama3", "yarn")


class RotaryEmbedding(nn.Module):
    """cos and sin of position x frequency, the frequencies being those of the teacher family's own rotary class.

    Bit-equal to that class in bfloat16 and float32. In float64 the default frequencies are computed in float64; scaled
    ones (linear, llama3, yarn) are transformers' float32 values.

    Raises:
        TeacherError: the config scales its rotary embedding with the batch's length.
    """

    def __init__(self, config: PreTrainedConfig, family_rotary: type[nn.Module]) -> None:
        super().__init__()
        self.rope_type = config.rope_parameters["rope_type"]
        if self.rope_type not in STATIC_ROPE_TYPES:
            known = ", ".join(STATIC_ROPE_TYPES)
            raise TeacherError(f"teacher rope_type={self.rope_type!r}: only {known} are supported; choose another teacher")
        self.config, self._family_rotary = config, family_rotary
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, float]] = {}

    @torch.no_grad()
    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (cos, sin), each [B or 1, T, head_dim] in x's dtype, for position_ids [B or 1, T]."""
        precision = torch.promote_types(x.dtype, torch.float32)
        frequencies, scaling = self._frequencies(x.device, precision)
        angles = position_ids[..., None].to(precision) * frequencies  # [B, T, head_dim / 2]
        angles = torch.cat((angles, angles), dim=-1)  # [B, T, head_dim]
        return (angles.cos() * scaling).to(x.dtype), (angles.sin() * scaling).to(x.dtype)

    def _frequencies(self, device: torch.device, precision: torch.dtype) -> tuple[Tensor, float]:
        if (device, precision) not in self._tables:
            with torch.device("cpu"):  # computed where transformers computes them: devices round differently
                rotary: Any = self._family_rotary(self.config)
                frequencies = rotary.inv_freq
                if precision == torch.float64 and self.rope_type == "default":
                    exponents = torch.arange(frequencies.shape[0], dtype=precision) / frequencies.shape[0]
                    frequencies = self.config.rope_parameters["rope_theta"] ** -exponents
            self._tables[device, precision] = frequencies.to(device, precision), rotary.attention_scaling
        return self._tables[device, precision]
