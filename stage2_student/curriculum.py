"""Phases as data: what is active, what trains, for how long, from which document. The loop only asks."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pipeline.contract.data_order import DocumentOrder
from pipeline.contract.errors import RunError
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.schedule import learning_rate, warmup_steps

Trainable = Literal["all", "new_block"]


@dataclass(frozen=True)
class Phase:
    """One phase.

    Attributes:
        active_blocks: blocks in the model, 1..K.
        appends: whether the last of them is new to the phase before.
        trainable: "all" active blocks with boundary norm and head, or the "new_block" and what `freeze.keep` names.
        first_step: optimizer steps done by the phases before.
        first_position: place in the endless stream of documents where the phase starts.
    """

    index: int
    active_blocks: int
    active_layers: int
    appends: bool
    steps: int
    trainable: Trainable
    first_step: int
    first_position: int


def phases(settings: StudentManifest) -> list[Phase]:
    """The phases of a run. Each has a new optimizer and schedule; one of the depth before is a restart without an append."""
    return [_phase(settings, index, active) for index, active in enumerate(settings.depths)]


def _phase(settings: StudentManifest, index: int, active: int) -> Phase:
    return Phase(
        index=index,
        active_blocks=active,
        active_layers=active * settings.model.layers_per_block,
        appends=index > 0 and active > settings.depths[index - 1],
        steps=settings.steps,
        trainable="new_block" if settings.curriculum == "freeze" and index > 0 else "all",
        first_step=index * settings.steps,
        first_position=0 if settings.data == "rewind" else index * settings.steps * settings.global_batch_size,
    )


def planned_phases(settings: StudentManifest) -> list[dict[str, Any]]:
    """What is known of a run's phases without its documents."""
    return [_planned(phase, settings) for phase in phases(settings)]


def _planned(phase: Phase, settings: StudentManifest) -> dict[str, Any]:
    return {
        "index": phase.index,
        "active_blocks": phase.active_blocks,
        "active_layers": phase.active_layers,
        "norm": settings.norm,
        "steps": phase.steps,
        "trainable": phase.trainable,
        "warmup_steps": warmup_steps(settings),
        "learning_rate_peak": max(learning_rate(step, settings) for step in range(min(settings.steps, warmup_steps(settings) + 1))),
        "first_document": phase.first_position,
    }


def is_trained(name: str, phase: Phase, settings: StudentManifest) -> bool:
    """Whether the parameter `name` gets gradients in `phase`. The embedding never does."""
    if name.startswith("embed_tokens."):
        return False
    if phase.trainable == "all" or name.startswith(f"blocks.{phase.active_blocks - 1}."):
        return True
    kept = {"head": "lm_head.", "boundary_norm": "boundary_norm."}
    return any(name.startswith(kept[part]) for part in settings.freeze.keep)


def training_range(settings: StudentManifest, documents: int) -> int:
    """Of the first `documents` of a shard, how many a run can draw from: extending the shard further leaves the run what it is."""
    if settings.train_documents is None:
        return documents
    passes = math.ceil(documents_drawn(settings) / settings.train_documents) if settings.data == "fresh" else 1
    return min(documents, passes * settings.train_documents)


def documents_drawn(settings: StudentManifest) -> int:
    """Documents of all steps, repeats counted."""
    return len(settings.depths) * settings.steps * settings.global_batch_size


def document_order(settings: StudentManifest, shard_sizes: Sequence[int], documents: int) -> DocumentOrder:
    """The stream of documents of a run whose training range is `documents`."""
    a_pass = min(settings.train_documents or documents, documents)
    later = "fresh" if settings.data == "fresh" and a_pass < documents else settings.order
    in_range = np.diff(np.minimum(np.cumsum([0, *shard_sizes]), documents))
    return DocumentOrder(in_range.tolist(), a_pass, settings.seed, later)


def check_documents(settings: StudentManifest, documents: int, cache: str) -> None:
    """Refuse what the cached documents cannot serve.

    Raises:
        RunError: no document at all, or `data: fresh` wants more than there are.
    """
    wanted = documents_drawn(settings)
    if documents == 0:
        raise RunError(f"{cache}: holds no training document; capture some with --set documents.limit=N")
    if settings.data == "fresh" and wanted > documents:
        raise RunError(
            f"data=fresh: {wanted} documents are needed and {cache} holds {documents}; "
            f"extend it with cache-teacher --set documents.limit={wanted}, or use --set data=continue"
        )
