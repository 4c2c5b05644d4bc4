"""vLLM's model with the pooler of `vllm_models.py`, and on request with less: what a capture is held against in `vllm_speed.py`."""

from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

from stage1_teacher.engines.vllm_models import KeptEntriesPooler, _KeptEntries, _places, _spans

ARCHITECTURE = "Qwen3WithFloors"
FLOOR = "floor"
"""Key of a request's `extra_kwargs`: prefill, transport or head."""


class FloorPooler(KeptEntriesPooler):
    """prefill gives one number a row; transport the packed rows' bytes, unset; head logits, log-softmax and top-k, and no more."""

    def forward(self, hidden_states: Tensor, pooling_metadata: Any) -> list[Tensor | None]:
        asked = pooling_metadata.pooling_params[0].extra_kwargs or {}
        if FLOOR not in asked:
            return super().forward(hidden_states, pooling_metadata)
        spans = _spans(pooling_metadata)
        hidden = hidden_states[torch.from_numpy(_places(spans))]
        made = self._head_alone(hidden, asked["k"]) if asked[FLOOR] == "head" else hidden.new_zeros(len(hidden), asked["width"]).int()
        return list(made.split([span.rows for span in spans]))

    def _head_alone(self, hidden: Tensor, k: int) -> Tensor:
        rows = []
        for start in range(0, len(hidden), self.rows_per_chunk):
            values, ids = self._logits(hidden[start : start + self.rows_per_chunk]).log_softmax(-1).topk(k)
            rows.append(torch.cat([ids.int(), values.view(torch.int32)], 1))
        return torch.cat(rows)


class Qwen3WithFloors(_KeptEntries, Qwen3ForCausalLM):
    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        self.pooler.__class__ = FloorPooler
