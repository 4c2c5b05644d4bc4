"""The student: a frozen embedding, a stack of blocks, one boundary norm and a head of its own.

Pre-norm:  E -> blocks -> final norm -> head.  Post-norm:  E -> entry norm -> blocks -> head.
Both have two norms a layer and one boundary norm, so equal parameter counts (paper, "Teacher, student").
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import CausalLMOutputWithPast

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.families import find_family
from stage2_student.model.head import DistillationHead
from stage2_student.model.layers import Block
from stage2_student.model.norms import RMSNorm
from stage2_student.model.rotary import RotaryEmbedding
from stage2_student.model.varlen import VARLEN, positions


class BlockStackForCausalLM(PreTrainedModel, GenerationMixin):
    """A causal language model of `config.active_blocks` blocks. Use `initialization.build_student` for a new one.

    Batches are right-padded and need no `attention_mask`: causal attention never looks right, and without a mask SDPA
    takes its fast causal path. Give one where the padding is on the left (batched generation).
    """

    config_class = BlockStackConfig
    supports_gradient_checkpointing = True
    _no_split_modules = ["PreNormLayer", "PostNormLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: BlockStackConfig) -> None:
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, index) for index in range(config.active_blocks))
        self.boundary_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = DistillationHead(config.hidden_size, config.vocab_size)
        self.rotary_emb = RotaryEmbedding(config, find_family(config.family).rotary)
        self.freeze_embedding()
        self.post_init()

    def freeze_embedding(self) -> None:
        self.embed_tokens.requires_grad_(False)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """As transformers', with the embedding frozen again: its loader makes every parameter trainable."""
        loaded = super().from_pretrained(*args, **kwargs)
        (loaded[0] if isinstance(loaded, tuple) else loaded).freeze_embedding()
        return loaded

    def enable_input_require_grads(self) -> None:
        """Do nothing: non-reentrant checkpointing needs no gradient at the input, and with one a frozen prefix would be recomputed."""

    def hidden_states(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        *,
        document_lengths: Sequence[int] | None = None,
        bypass: Collection[int] = (),
        boundaries: list[Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Return the state [B, T, D] that the head reads, for input_ids [B, T].

        With `document_lengths` input_ids [1, T] are documents one behind the other, which see nothing of each other.
        `bypass` names blocks to step over. `boundaries` receives the residual stream [B, T, D] where block 0 starts
        (after post-norm's entry norm) and after each active block: active_blocks + 1 tensors, bypassed ones repeated.
        """
        assert not (bypass and past_key_values is not None), "a bypassed block leaves a hole in the KV cache"
        h = self.embed_tokens(input_ids)  # [B, T, D]
        if self.config.norm == "post":
            h = self.boundary_norm(h)
        if document_lengths is None:
            attention = self._attention_inputs(h, attention_mask, position_ids, past_key_values) | kwargs
        else:
            attention = self._attention_by_document(h, document_lengths) | kwargs
        if boundaries is not None:
            boundaries.append(h)
        for index, block in enumerate(self.blocks):
            h = h if index in bypass else block(h, **attention)
            if boundaries is not None:
                boundaries.append(h)
        return self.boundary_norm(h) if self.config.norm == "pre" else h

    def _attention_inputs(
        self, h: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, past_key_values: Cache | None
    ) -> dict[str, Any]:
        # Only positions that a caller gave reach the mask: they may restart, and looking for that costs a device sync.
        mask = create_causal_mask(self.config, h, attention_mask, past_key_values, position_ids)
        if position_ids is None:
            seen = past_key_values.get_seq_length() if past_key_values is not None else 0
            position_ids = (torch.arange(h.shape[1], device=h.device) + seen).unsqueeze(0)  # [1, T]
        return {
            "attention_mask": mask,
            "position_embeddings": self.rotary_emb(h, position_ids),
            "past_key_values": past_key_values,
        }

    def _attention_by_document(self, h: Tensor, document_lengths: Sequence[int]) -> dict[str, Any]:
        assert self.config._attn_implementation == VARLEN, "only varlen attention keeps documents apart"
        return {
            "attention_mask": None,
            "position_embeddings": self.rotary_emb(h, positions(document_lengths, h.device)),
            "document_lengths": document_lengths,
        }

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int | Tensor = 0,
        head_loss: Callable[[Tensor, Tensor], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return logits [B, T, V] in a `CausalLMOutputWithPast`; with `head_loss`, what it makes of ([B, T, D], [V, D]).

        `labels` [B, T] are shifted here, as in every transformers model, and -100 is ignored. The KV cache is off unless
        `use_cache` is true or one is given. `document_lengths`, `bypass` and `boundaries` are as for `hidden_states`.
        """
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache(config=self.config)
        hidden = self.hidden_states(input_ids, attention_mask, position_ids, past_key_values, **kwargs)
        if head_loss is not None:
            return self.lm_head(hidden, head_loss)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, kept])  # [B, T or logits_to_keep, V]
        loss = None if labels is None else self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
