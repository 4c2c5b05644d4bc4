"""Validation loss over training, phase by phase (paper, figures 3b and 5b)."""

from collections.abc import Sequence
from typing import Any

from pipeline.contract.run_record import Metrics
from stage2_student.diagnostics.values import NOT_FINITE, number

DEFINITION = "CE, KL and KD on all validation documents, nats a target token; `step` counts optimizer steps over all phases."

COLUMNS = ("ce", "kl", "kd")


def trajectories(metrics: Sequence[Metrics], phases: int) -> list[dict[str, Any]]:
    """One entry a phase of the `phases` that the run has; a phase without an evaluation says so."""
    found = [m for m in metrics if m["kind"] == "val"]
    return [_phase([m for m in found if m["phase"] == phase], phase) for phase in range(phases)]


def _phase(found: list[Metrics], phase: int) -> dict[str, Any]:
    points = [{"step": m["step"], "phase_step": m["phase_step"], **_values(m)} for m in found]
    return {"phase": phase, "points": points, "last": points[-1] if points else "no evaluation on record"}


def _values(record: Metrics) -> dict[str, Any]:
    values = {name: record.get(f"val/{name}") for name in COLUMNS}
    return {name: NOT_FINITE if value is None else number(value) for name, value in values.items()}
