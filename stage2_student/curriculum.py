"""Phases as data: what is active, what trains, for how long, from which document. The loop only asks."""

from dataclasses import dataclass
from typing import Literal

from pipeline.contract.errors import RunError
from pipeline.contract.manifest.student import StudentManifest

Trainable = Literal["all", "new_block"]


@dataclass(frozen=True)
class Phase:
    """One phase.

    Attributes:
        active_blocks: blocks in the model, 1..K.
        trainable: "all" active blocks with boundary norm and head, or the "new_block" and what `freeze.keep` names.
        first_step: optimizer steps done by the phases before.
        first_position: place in the endless stream of documents where the phase starts.
    """

    index: int
    active_blocks: int
    active_layers: int
    steps: int
    trainable: Trainable
    first_step: int
    first_position: int


def phases(settings: StudentManifest) -> list[Phase]:
    """The phases of a run: one for joint; K for grow and freeze, the first p+1 blocks active in phase p (paper, 'Curricula')."""
    count = 1 if settings.curriculum == "joint" else settings.model.blocks
    return [_phase(settings, index) for index in range(count)]


def _phase(settings: StudentManifest, index: int) -> Phase:
    active = settings.model.blocks if settings.curriculum == "joint" else index + 1
    return Phase(
        index=index,
        active_blocks=active,
        active_layers=active * settings.model.layers_per_block,
        steps=settings.steps,
        trainable="new_block" if settings.curriculum == "freeze" and index > 0 else "all",
        first_step=index * settings.steps,
        first_position=0 if settings.data == "rewind" else index * settings.steps * settings.global_batch_size,
    )


def is_trained(name: str, phase: Phase, settings: StudentManifest) -> bool:
    """Whether the parameter `name` gets gradients in `phase`. The embedding never does."""
    if name.startswith("embed_tokens."):
        return False
    if phase.trainable == "all" or name.startswith(f"blocks.{phase.active_blocks - 1}."):
        return True
    kept = {"head": "lm_head.", "boundary_norm": "boundary_norm."}
    return any(name.startswith(kept[part]) for part in settings.freeze.keep)


def check_documents(settings: StudentManifest, documents: int, cache: str) -> None:
    """Refuse what the cached documents cannot serve.

    Raises:
        RunError: no document at all, or `data: fresh` wants more than there are.
    """
    wanted = len(phases(settings)) * settings.steps * settings.global_batch_size
    if documents == 0:
        raise RunError(f"{cache}: holds no training document; capture some with --set documents.limit=N")
    if settings.data == "fresh" and wanted > documents:
        raise RunError(
            f"data=fresh: {wanted} documents are needed and {cache} holds {documents}; "
            f"extend it with cache-teacher --set documents.limit={wanted}, or use --set data=continue"
        )
