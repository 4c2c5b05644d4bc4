"""A small model of the teacher's family, and its cross-entropy: transformers' own Qwen3, masks from lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pipeline.contract.manifest.teacher_training import TeacherTraining


def new_model(training: TeacherTraining, max_length: int, separator_id: int) -> Any:
    """A float32 `Qwen3ForCausalLM` with its own head (not tied, as the paper's teacher), drawn on the CPU from `training.seed`."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes = training.model_dump(include={"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "initializer_range"})
    config = Qwen3Config(
        **sizes,
        num_attention_heads=training.num_attention_heads,
        num_key_value_heads=training.num_key_value_heads,
        head_dim=training.hidden_size // training.num_attention_heads,
        max_position_embeddings=max_length,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=separator_id,
        pad_token_id=separator_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        return Qwen3ForCausalLM(config)


def summed_cross_entropy(model: Any, documents: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Sum over all targets of -log p(token t+1 | tokens <= t), in nats, float32; documents are [T] ids each.

    They are padded on the right, where causal attention never looks; what is a target is known from the lengths. The head
    sees target rows only.
    """
    lengths = torch.tensor([len(ids) for ids in documents])
    padded = torch.zeros(len(documents), int(lengths.max()), dtype=torch.int64)  # [B, T]
    for row, ids in enumerate(documents):
        padded[row, : len(ids)] = torch.from_numpy(ids)
    has_label = torch.arange(padded.shape[1]) < lengths[:, None] - 1  # [B, T]
    hidden = model.model(padded.to(device), use_cache=False).last_hidden_state  # [B, T, D]
    logits = model.lm_head(hidden[has_label.to(device)])  # [R, V]
    return functional.cross_entropy(logits, padded.roll(-1, 1)[has_label].to(device), reduction="sum")
