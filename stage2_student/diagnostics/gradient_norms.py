"""Whose gradient it is, and how often it was clipped: by phase, and by block, head and boundary norm at the recorded steps."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.contract.run_record import Metrics
from stage2_student.diagnostics.values import Value, number, without_numbers

PREFIX = "optim/grad_norm/"

DEFINITION = {
    "clip_fraction": "share of all steps of the phase whose global L2 norm was above gradient_clip; clipping scales the whole gradient",
    "share": "mean over the recorded steps of the part's squared norm over the global one",
    "over_clip_fraction": "share of the recorded steps at which the part's own norm alone was above gradient_clip",
    "norms": "before clipping",
}


def gradient_norms(metrics: Sequence[Metrics], phases: int, clip: float) -> list[dict[str, Any]]:
    """One entry a phase of the `phases` that the run has."""
    train = [m for m in metrics if m["kind"] == "train"]
    return [_phase([m for m in train if m["phase"] == phase], phase, clip) for phase in range(phases)]


def _phase(steps: list[Metrics], phase: int, clip: float) -> dict[str, Any]:
    recorded = [m for m in steps if any(key.startswith(PREFIX) for key in m)]
    parts = sorted({key for m in recorded for key in m if key.startswith(PREFIX)})
    return {
        "phase": phase,
        "steps": len(steps),
        "clip_fraction": number(np.mean([m["optim/clipped"] for m in steps])) if steps else "no step on record",
        **_global(steps),
        "recorded_steps": len(recorded),
        "parts": {key.removeprefix(PREFIX): _part(recorded, key, clip) for key in parts} or "no norms by block on record",
    }


def _global(steps: list[Metrics]) -> dict[str, Value]:
    norms = np.array([m["optim/grad_norm"] for m in steps], dtype=np.float64)
    if len(norms) == 0:
        return without_numbers(("mean", "median", "max"), "no step on record")
    return {"mean": number(norms.mean()), "median": number(np.median(norms)), "max": number(norms.max())}


def _part(recorded: list[Metrics], key: str, clip: float) -> dict[str, Any]:
    members = [m for m in recorded if key in m]
    norms = np.array([m[key] for m in members], dtype=np.float64)
    whole = np.array([m["optim/grad_norm"] for m in members], dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.mean(norms**2 / whole**2)
    return {
        "mean": number(norms.mean()),
        "median": number(np.median(norms)),
        "max": number(norms.max()),
        "share": number(share),
        "over_clip_fraction": number((norms > clip).mean()),
    }
