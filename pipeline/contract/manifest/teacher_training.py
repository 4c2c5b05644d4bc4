"""How a small teacher of one's own is made: its size and its training, for studies that fit a CPU."""

from typing import Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from pipeline.contract.manifest.strict import Strict

SMALLEST_VOCABULARY = 257
"""A byte-level vocabulary: 256 bytes and the separator."""


class TeacherTraining(Strict):
    """A Qwen3-shaped model and its byte-pair vocabulary, trained by plain cross-entropy on the shard's training documents."""

    vocab_size: int = Field(2048, ge=SMALLEST_VOCABULARY, description="bytes, merges and the separator")
    hidden_size: PositiveInt = 128
    intermediate_size: PositiveInt = 384
    num_hidden_layers: PositiveInt = 6
    num_attention_heads: PositiveInt = 4
    num_key_value_heads: PositiveInt = 2
    initializer_range: PositiveFloat = 0.02

    seed: NonNegativeInt = 0
    steps: PositiveInt = Field(4000, description="optimizer steps")
    global_batch_size: PositiveInt = Field(16, description="documents a step")
    micro_batch_tokens: PositiveInt = Field(4096, description="padded input tokens a forward holds at most (one document may exceed it)")
    learning_rate: PositiveFloat = 3e-3
    learning_rate_min: NonNegativeFloat = 3e-5
    warmup_ratio: float = Field(0.02, ge=0, lt=1, description="of the steps, at least one step")
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    adam_epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = Field(0.1, description="of matrices; norm gains have none")
    gradient_clip: PositiveFloat = Field(1.0, description="global L2 norm")
    eval_interval: PositiveInt = Field(500, description="optimizer steps between evaluations; also at step 0 and at the end")
    checkpoint_interval: PositiveInt = 100

    @model_validator(mode="after")
    def _possible(self) -> Self:
        heads, groups = self.num_attention_heads, self.num_key_value_heads
        if self.hidden_size % (2 * heads):
            raise ValueError(f"hidden_size={self.hidden_size}: has to be an even multiple of num_attention_heads={heads}")
        if heads % groups:
            raise ValueError(f"num_key_value_heads={groups}: has to divide num_attention_heads={heads}")
        return self
