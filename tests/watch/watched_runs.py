"""Run folders as training leaves them at any moment, written by the record's own functions."""

import math
from pathlib import Path
from typing import Any

from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.process import process_mark
from pipeline.contract.run_record import RunFolder

STEPS = 40
GROW: dict[str, Any] = {"norm": "post", "curriculum": "grow", "steps": STEPS, "model": {"blocks": 3, "layers_per_block": 2}}


def settings(**changes: Any) -> StudentManifest:
    """Three phases of 40 steps, of 2, 4 and 6 layers."""
    return StudentManifest.model_validate(GROW | changes)


def begin(path: Path, name: str = "exp/post-grow-seed42", mark: str | None = None, **changes: Any) -> RunFolder:
    """A run that this process has started, or the process of `mark`."""
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    folder.write("config", {"run": name, "shard": "tiny", "settings": settings(**changes).model_dump()})
    folder.write("provenance", [{"started": "2026-01-02T03:04:05Z", "resumed_from": 0, "process": mark or process_mark()}])
    return folder


def end(folder: RunFolder, reason: str, stopped: bool = False) -> None:
    """Note how the last start ended, as training does."""
    starts = folder.read("provenance")
    starts[-1] |= {"ended": reason, "stopped": stopped}
    folder.write("provenance", starts)


def train_record(step: int, loss: float | None = None, seconds: float = 0.5, **more: Any) -> dict[str, Any]:
    """The record of update `step`, from 1 on, with 100 tokens."""
    phase, before = divmod(step - 1, STEPS)
    value = 3.0 + math.exp(-step / 20) if loss is None else loss
    at = {"kind": "train", "step": step, "phase": phase, "phase_step": before + 1}
    losses = {"train/loss": value, "train/kl": value - 1, "optim/clip_fraction": 0.25}
    return at | losses | {"perf/seconds": seconds, "perf/tokens_per_second": 100 / seconds, "tokens": 100} | more


def val_record(step: int, phase: int, ce: float) -> dict[str, Any]:
    return {"kind": "val", "step": step, "phase": phase, "phase_step": step - phase * STEPS, "val/ce": ce, "val/kl": ce - 1}


def guard_record(step: int, guard: str, **more: Any) -> dict[str, Any]:
    phase, before = divmod(step - 1, STEPS)
    return {"kind": "guard", "step": step, "phase": phase, "phase_step": before + 1, "guard": guard, **more}


def advance(folder: RunFolder, first: int, last: int) -> None:
    """Updates `first` to `last`."""
    for step in range(first, last + 1):
        folder.append_metrics(train_record(step))
