"""The settings of one student run. The defaults are the paper's (Ren et al. 2026, section 'Hyperparameters')."""

from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from pipeline.contract.errors import ManifestError, NotThereYet
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.manifest.strict import Strict

Norm = Literal["pre", "post"]
Curriculum = Literal["joint", "grow", "freeze"]


class ModelShape(Strict):
    """K blocks of L decoder layers; every other size is the teacher's."""

    blocks: PositiveInt = 3
    layers_per_block: PositiveInt = 3
    initializer_range: PositiveFloat = Field(0.02, description="std of a new block's weights")
    new_block: Literal["random", "zero_out"] = Field("random", description="zero_out: o_proj and down_proj start at zero")


class Freeze(Strict):
    """What stays trainable besides the new block, from phase 1 of `curriculum: freeze` on."""

    keep: list[Literal["head", "boundary_norm"]] = []


class StudentManifest(Strict):
    """One student run."""

    name: str | None = Field(None, description="of the run; derived from shard, norm, curriculum and seed when not given")
    norm: Norm = "pre"
    curriculum: Curriculum = "joint"
    seed: NonNegativeInt = 42
    model: ModelShape = ModelShape()
    freeze: Freeze = Freeze()
    phase_blocks: list[PositiveInt] | None = Field(
        None, min_length=1, description="active blocks in each phase; joint: [K] when not given, grow and freeze: [1, ..., K]"
    )

    steps: PositiveInt = Field(50_000, description="optimizer steps a phase")
    global_batch_size: PositiveInt = Field(64, description="documents a step")
    micro_batch_tokens: PositiveInt = Field(
        16_384, description="input tokens a micro-batch holds at most, padding included (one document may exceed it)"
    )
    attention: Literal["varlen", "padded"] = Field("varlen", description="varlen: documents lie one behind the other, nothing is padded")
    micro_batch_overhead: NonNegativeInt = Field(256, description="attention=padded: tokens that one micro-batch more has to save")
    learning_rate: PositiveFloat = 1e-4
    learning_rate_min: NonNegativeFloat = 1e-6
    warmup_ratio: float = Field(0.015, ge=0, lt=1, description="of the phase's steps, at least one step")
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    adam_epsilon: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    gradient_clip: PositiveFloat = Field(0.5, description="global L2 norm")

    nonfinite_limit: NonNegativeInt = Field(3, description="steps of a run whose gradient may not be finite; they are passed over")

    alpha: NonNegativeFloat = Field(0.7, description="weight of the distillation term")
    gamma: NonNegativeFloat = Field(0.3, description="weight of the cross-entropy term")
    temperature: PositiveFloat = 1.0
    tail: Literal["auto", "bucket", "sampled", "renormalize", "renormalize_one_sided"] = Field(
        "auto", description="auto: sampled where the cache holds samples, else bucket"
    )

    order: Literal["fixed", "reshuffle"] = Field("fixed", description="document order in later passes")
    data: Literal["continue", "rewind", "fresh"] = Field("continue", description="where a phase starts in the documents")
    train_documents: PositiveInt | None = Field(
        None, description="a pass goes through so many, the first of the shard (data=fresh: then through the next); all when not given"
    )

    eval_interval: PositiveInt = Field(2000, description="optimizer steps between evaluations; also at step 0 and at each phase's end")
    checkpoint_interval: PositiveInt = 1000
    keep_checkpoints: PositiveInt = Field(2, description="the newest that stay while the run goes on")
    keep_phase_ends: bool = Field(False, description="also keep model and optimizer at each phase's end, for good")
    probe_documents: NonNegativeInt = Field(8, description="validation documents evaluated at steps 0, 4, 8, 16, ... of a phase; 0: none")
    gradient_norms_interval: NonNegativeInt = Field(100, description="optimizer steps between gradient norms by block; 0: none")
    tensorboard: bool = Field(True, description="event files in the run's folder, beside metrics.jsonl")
    snapshot_interval: NonNegativeInt = Field(0, description="optimizer steps between weights kept for diagnostics; 0: phase ends only")

    precision: Literal["auto", "bfloat16", "float32"] = Field("auto", description="auto: bfloat16 on CUDA, float32 on CPU")
    zero: Literal[0, 1, 2, 3] = Field(1, description="DeepSpeed ZeRO stage")
    offload: Literal["none", "optimizer", "all"] = Field(
        "none", description="what the host's memory holds: optimizer state and masters, or the weights too (zero=3)"
    )
    gradient_checkpointing: bool = True
    loss_kernels: Literal["auto", "eager", "compiled", "triton"] = Field(
        "auto", description="the loss's passes over the vocabulary; auto: by torch.compile where a micro-batch is large"
    )
    loader_workers: Literal["auto"] | NonNegativeInt = Field(
        "auto", description="processes a rank that read ahead; auto: 2 on CUDA, 0 on CPU"
    )

    @field_validator("norm", mode="before")
    @classmethod
    def _placement(cls, value: Any) -> Any:
        if isinstance(value, list) or (isinstance(value, str) and (value == "auto" or "," in value)):
            raise NotThereYet(f"norm={value}: this version takes one placement for all phases; use 'pre' or 'post'")
        return value

    @field_validator("phase_blocks")
    @classmethod
    def _depths(cls, depths: list[int] | None, info: ValidationInfo) -> list[int] | None:
        curriculum, shape = info.data.get("curriculum"), info.data.get("model")
        if depths is None or curriculum is None or shape is None:
            return depths
        rule, steps = {"joint": ("equal", {0}), "grow": ("each 0 or 1 more than the one before", {0, 1}), "freeze": ("each 1 more", {1})}[
            curriculum
        ]
        if max(depths) > shape.blocks or not {after - before for before, after in pairwise(depths)} <= steps:
            raise ValueError(f"curriculum={curriculum} takes depths that are {rule}, at most model.blocks={shape.blocks}")
        return depths

    @property
    def depths(self) -> list[int]:
        """Active blocks in each phase (paper, 'Curricula')."""
        blocks = self.model.blocks
        return self.phase_blocks or ([blocks] if self.curriculum == "joint" else list(range(1, blocks + 1)))

    @property
    def decided_tail(self) -> Literal["bucket", "sampled", "renormalize", "renormalize_one_sided"]:
        """The tail, once `for_targets` has decided it."""
        assert self.tail != "auto"
        return self.tail

    def for_targets(self, targets: Targets) -> "StudentManifest":
        """These settings on a cache that holds `targets`, the tail decided.

        Raises:
            ManifestError: the tail or the temperature does not go with them.
        """
        sampled = targets.mode == "sampled"
        tail = ("sampled" if sampled else "bucket") if self.tail == "auto" else self.tail
        if (tail == "sampled") != sampled:
            raise ManifestError(f"tail={tail}: the cache holds targets.mode={targets.mode}; use --set tail=auto")
        if self.temperature not in targets.all_temperatures:
            captured = ", ".join(f"{tau:g}" for tau in targets.all_temperatures)
            raise ManifestError(
                f"temperature={self.temperature:g}: the cache was captured for {captured}; use one of these, "
                f"or capture another one with --set targets.temperatures=[1,{self.temperature:g}]"
            )
        return self.model_copy(update={"tail": tail})
