"""The student's config: the teacher family's own fields, flat, and how the blocks are stacked.

Flat, because then one object serves transformers' sub-layers, masks, caches and `generate`, and a change of the attention
implementation reaches all of them.
"""

import copy
from dataclasses import field, fields
from typing import Any, ClassVar, Literal, Self

from transformers import PreTrainedConfig

from pipeline.contract.errors import RunError, TeacherError
from stage2_student.model.families import find_family


class BlockStackConfig(PreTrainedConfig):
    """K blocks of L decoder layers of a teacher's family, of which the first `active_blocks` exist.

    The family's other fields (`intermediate_size`, `hidden_act`, ...) are attributes under their Hugging Face names.
    `structure` lists the structural events (see `growth.py`) that led here from a smaller stack, oldest first.

    Raises:
        TeacherError: `family` is not supported.
        RunError: a placement that is neither pre nor post, or more active blocks than blocks.
    """

    model_type = "block_stack"
    has_no_defaults_at_init = True
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    family: str
    vocab_size: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: dict[str, Any] | None = None
    use_cache: bool = True
    blocks: int = 3
    layers_per_block: int = 3
    norm: Literal["pre", "post"] = "pre"
    active_blocks: int = 3
    initializer_range: float = 0.02
    seed: int = 42
    structure: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self, **kwargs: Any) -> None:
        find_family(self.family)
        if self.norm not in ("pre", "post"):
            raise RunError(f"norm={self.norm!r}: a placement is 'pre' or 'post'; correct it in the student's config")
        # Not the teacher's: the embedding is frozen and the head is trained, so they can never be one tensor.
        self.tie_word_embeddings = False
        for derived in ("tie_word_embeddings", "num_hidden_layers", "layer_types"):
            kwargs.pop(derived, None)
        self._activate(self.active_blocks)
        super().__post_init__(**kwargs)

    @classmethod
    def from_teacher(
        cls,
        teacher_config: PreTrainedConfig,
        *,
        blocks: int,
        layers_per_block: int,
        norm: Literal["pre", "post"],
        active_blocks: int,
        initializer_range: float,
        seed: int,
    ) -> Self:
        """Take every size but the depth from the teacher (paper, "Teacher, student").

        Raises:
            TeacherError: an unsupported family, or layers with another attention than full.
        """
        own = {f.name for f in fields(find_family(teacher_config.model_type).config)} - {f.name for f in fields(PreTrainedConfig)}
        own -= {"num_hidden_layers", "layer_types", "tie_word_embeddings", "initializer_range"}
        for kind in getattr(teacher_config, "layer_types", None) or []:
            if kind != "full_attention":
                raise TeacherError(f"teacher layer_types has {kind!r}: a student's layers are full_attention; choose another teacher")
        return cls(
            family=teacher_config.model_type,
            blocks=blocks,
            layers_per_block=layers_per_block,
            norm=norm,
            active_blocks=active_blocks,
            initializer_range=initializer_range,
            seed=seed,
            **{name: copy.deepcopy(getattr(teacher_config, name)) for name in sorted(own)},
        )

    def with_event(self, event: dict[str, Any], *, active_blocks: int) -> Self:
        """A copy with another depth and `event` at the end of `structure`; this config is untouched."""
        changed = copy.deepcopy(self)
        changed._activate(active_blocks)
        changed.structure.append(copy.deepcopy(event))
        return changed

    def _activate(self, active_blocks: int) -> None:
        if not 1 <= active_blocks <= self.blocks:
            raise RunError(f"active_blocks={active_blocks}: must be 1 to blocks={self.blocks}; give the student more blocks")
        self.active_blocks = active_blocks
        self.num_hidden_layers = active_blocks * self.layers_per_block
        self.layer_types = ["full_attention"] * self.num_hidden_layers
