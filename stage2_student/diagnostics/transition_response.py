"""What happens to the loss where a phase begins (paper, table A4), and on a fixed slice of documents, where the append's cost and
the restarted learning rate's are seen apart.

The paper's windows are of phases of 50,000 steps; a run's are the same shares of its own. Its 200-step mean is trailing here: a
centred one looks ahead, so that step 101 is the earliest that can be back.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from pipeline.contract.run_record import Metrics
from stage2_student.diagnostics.values import NOT_FINITE, Value, number, without_numbers

PAPER_STEPS = 50_000
SMOOTHING, AUC_1K, AUC_5K = 200, 1_000, 5_000

DEFINITION = {
    "baseline": "mean training loss of the last `smoothing` steps before the phase",
    "first_step": "loss of the phase's first step, before any update of it, less the baseline",
    "jump": "mean loss of the phase's first `smoothing` steps less the baseline",
    "auc_1k": "mean over the first `auc_1k` steps of loss less baseline: the area per step; parts below the baseline count as negative",
    "auc_5k": "the same over `auc_5k` steps",
    "recovery_steps": "first step of the phase whose trailing mean over `smoothing` steps of the phase is at or below the baseline",
    "append_jump": "CE of the fixed slice just after the append less just before, no update between",
    "restart_rise": "the largest rise of the slice's CE above its lowest value before, in the phase: what the append cost only falls from",
    "windows": f"{SMOOTHING}, {AUC_1K} and {AUC_5K} steps of {PAPER_STEPS}, the same shares of a run's own phases, at least one step",
}


def scaled(window: int, steps: int) -> int:
    """A window of the paper's in phases of `steps`."""
    return max(1, round(window * steps / PAPER_STEPS))


def transition_response(metrics: Sequence[Metrics], steps: int) -> dict[str, Any]:
    """One entry for each phase but the first; `steps` a phase."""
    windows = {"smoothing": scaled(SMOOTHING, steps), "auc_1k": scaled(AUC_1K, steps), "auc_5k": scaled(AUC_5K, steps)}
    train = [m for m in metrics if m["kind"] == "train"]
    probes = [m for m in metrics if m["kind"] == "probe"]
    found = sorted({m["phase"] for m in train})
    transitions = [_transition(train, probes, before, after, steps, windows) for before, after in pairwise(found)]
    return {"windows": windows, "transitions": transitions or "no transition on record: one phase"}


def _transition(
    train: list[Metrics], probes: list[Metrics], before: int, after: int, steps: int, windows: dict[str, int]
) -> dict[str, Any]:
    first = next(m for m in train if m["phase"] == after)
    last = [m for m in train if m["phase"] == before][-1]
    incomplete = {} if last["phase_step"] == steps else {"remark": f"the phase before is on record up to step {last['phase_step']} only"}
    return {
        "phase": after,
        "step": first["step"] - first["phase_step"],
        "layers_before": last["growth/active_layers"],
        "layers": first["growth/active_layers"],
        **incomplete,
        **{
            name: response(_series(train, before, key), _series(train, after, key), windows)
            for name, key in (("loss", "train/loss"), ("ce", "train/ce"))
        },
        "probe": probe_response(probes, before, after, steps),
    }


def _series(records: list[Metrics], phase: int, key: str) -> np.ndarray:
    """[steps] of one phase; what is not finite or not there is NaN."""
    return np.array([m.get(key) if m.get(key) is not None else np.nan for m in records if m["phase"] == phase], dtype=np.float64)


def response(before: np.ndarray, after: np.ndarray, windows: dict[str, int]) -> dict[str, Value]:
    """Of a loss [steps] in the phase before and in the phase after."""
    smoothing = windows["smoothing"]
    if len(before) < smoothing:
        why = f"the phase before has {len(before)} steps, fewer than {smoothing}"
        return without_numbers(("baseline", "first_step", "jump", "auc_1k", "auc_5k", "recovery_steps"), why)
    baseline = before[-smoothing:].mean()
    excess = after - baseline
    return {
        "baseline": number(baseline),
        "first_step": number(excess[0]),
        "jump": area(excess, smoothing),
        "auc_1k": area(excess, windows["auc_1k"]),
        "auc_5k": area(excess, windows["auc_5k"]),
        "recovery_steps": recovery(excess, smoothing),
    }


def area(excess: np.ndarray, window: int) -> Value:
    """Mean over the first `window` steps, or why there is none."""
    if len(excess) < window:
        return f"{len(excess)} of {window} steps on record"
    return number(excess[:window].mean())


def recovery(excess: np.ndarray, smoothing: int) -> Value:
    """The first step (from 1) at which the trailing mean is not above zero; no step before `smoothing` has one."""
    if len(excess) < smoothing:
        return f"{len(excess)} of {smoothing} steps on record"
    if not np.isfinite(excess).all():
        return NOT_FINITE
    sums = np.concatenate([[0.0], np.cumsum(excess)])
    means = (sums[smoothing:] - sums[:-smoothing]) / smoothing
    back = np.nonzero(means <= 0)[0]
    return int(back[0]) + smoothing if len(back) else f"not within {len(excess)} steps"


def probe_response(probes: list[Metrics], before: int, after: int, steps: int) -> dict[str, Any]:
    """The fixed slice at steps -1, 0, 4, 8, ...: [step of the phase, CE], what the append cost, what rose later."""
    found = {(m["phase"], m["phase_step"]): m.get("probe/ce") for m in probes}
    points = [(step, found[phase, step]) for phase, step in sorted(found) if phase == after]
    end = found.get((before, steps))
    if not points:
        return {"points": [], **without_numbers(("append_jump", "restart_rise", "restart_peak_step"), "no probe on record")}
    shown = [[-1, end if end is not None else "no probe on record"], *([step, NOT_FINITE if ce is None else ce] for step, ce in points)]
    rise, peak = _largest_rise(points)
    return {"points": shown, "append_jump": _difference(found.get((after, 0)), end), "restart_rise": rise, "restart_peak_step": peak}


def _difference(after: float | None, before: float | None) -> Value:
    return "no finite value on both sides" if after is None or before is None else number(after - before)


def _largest_rise(points: Sequence[tuple[int, float | None]]) -> tuple[Value, Value]:
    """Largest CE less lowest CE before it, and the step of the former; 0 and "none" for a slice that only falls."""
    rise, peak, lowest = 0.0, None, float("inf")
    for step, ce in points:
        if ce is None:
            return NOT_FINITE, NOT_FINITE
        if ce - lowest > rise:
            rise, peak = ce - lowest, step
        lowest = min(lowest, ce)
    return rise, "none" if peak is None else peak
