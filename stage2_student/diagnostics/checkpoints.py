"""The students that a run has left: one at each phase's end, and snapshots between where it was asked for them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import RunFolder
from stage2_student.curriculum import Phase, phases
from stage2_student.model.student import BlockStackForCausalLM


class Unreadable(Exception):
    """A checkpoint that is not there or not whole; its text goes where the numbers would."""


@dataclass(frozen=True)
class Checkpoint:
    """`step` counts optimizer steps over all phases."""

    phase: int
    step: int
    folder: Path

    def as_json(self) -> dict[str, Any]:
        return {"checkpoint": self.folder.name, "phase": self.phase, "step": self.step}


def checkpoints(run: RunFolder, settings: StudentManifest) -> list[Checkpoint]:
    """Every phase's end, there or not, and the snapshots that are there, by step."""
    planned = phases(settings)
    ends = [Checkpoint(phase.index, phase.first_step + phase.steps, run.phase(phase.index)) for phase in planned]
    steps = [(int(folder.name.removeprefix("step-")), folder) for folder in run.snapshots.glob("step-*")]
    between = [Checkpoint(_phase_at(step, planned), step, folder) for step, folder in steps]
    return sorted(ends + between, key=lambda each: (each.step, each.folder.name))


def _phase_at(step: int, planned: list[Phase]) -> int:
    return next((phase.index for phase in planned if step <= phase.first_step + phase.steps), planned[-1].index)


def load(checkpoint: Checkpoint, device: torch.device) -> BlockStackForCausalLM:
    """The float32 student, ready to be looked at.

    Raises:
        Unreadable: with the reason.
    """
    if not checkpoint.folder.is_dir():
        raise Unreadable(f"{checkpoint.folder.name} is not there: the phase is not finished, or its folder was removed")
    try:
        student, info = BlockStackForCausalLM.from_pretrained(checkpoint.folder, dtype=torch.float32, output_loading_info=True)
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        SafetensorError,
    ) as error:  # what transformers raises for a damaged folder
        raise Unreadable(f"{checkpoint.folder.name} cannot be read ({(str(error) or type(error).__name__).splitlines()[0]})") from None
    if info["missing_keys"]:
        raise Unreadable(f"{checkpoint.folder.name} lacks the weights {', '.join(sorted(info['missing_keys'])[:3])}")
    return student.to(device).eval()


def unfinished(run: RunFolder) -> str:
    """Empty, or that a run is not at its end and how far its records go."""
    if (run.path / "result.json").is_file():
        return ""
    try:
        last = max((m["step"] for m in run.metrics()), default=0)
    except json.JSONDecodeError:
        return "no result.json, and metrics.jsonl has a line that is not JSON"
    return f"no result.json: the run is not finished, its last record is of step {last}"
