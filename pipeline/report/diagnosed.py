"""Numbers out of the records of `pipeline diagnose`: each a number, or the text that stands where it would.

Checkpoints between phases are for a closer look; tables and figures take the phases' ends.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.report.grid import Cell
from pipeline.report.records import Run

NOT_DIAGNOSED = "not diagnosed"


def phase_ends(run: Run, name: str) -> dict[int, Any]:
    """What a diagnostic found at each phase's end: its finding, or a text."""
    checkpoints = run.diagnostics.get(name, {}).get("checkpoints", [])
    return {c["phase"]: c["found"] for c in checkpoints if str(c["checkpoint"]).startswith("phase-")}


def at_end(run: Run, name: str) -> Any:
    """What it found in the finished student, or a text."""
    ends = phase_ends(run, name)
    return ends[max(ends)] if ends else NOT_DIAGNOSED


def removal(run: Run, block: int, measure: str) -> Cell:
    """`delta_ce`, `standard_error_documents` or `angular_distance` of a block of the finished student."""
    found = at_end(run, "removal")
    if isinstance(found, str):
        return found
    return found["blocks"][block][measure] if block < len(found["blocks"]) else "no such block"


def transition(run: Run, number: int, source: str, measure: str) -> Cell:
    """A measure of the transition into phase `number` + 1, from the training `loss` or the `probe` on the fixed slice."""
    record = run.diagnostics.get("transition")
    if record is None:
        return NOT_DIAGNOSED
    found = record["found"]["transitions"]
    if isinstance(found, str) or number >= len(found):
        return "no transition"
    return found[number][source][measure]


def recovery_share(run: Run, number: int) -> Cell:
    """Steps to recovery over the steps of a phase."""
    steps = transition(run, number, "loss", "recovery_steps")
    return steps if steps is None or isinstance(steps, str) else steps / run.config["settings"]["steps"]


def boundary(found: Any, block: int, keys: Sequence[str]) -> Cell:
    """A measure of a boundary or of a token type there, in one finding; boundaries are counted from after block 0."""
    if isinstance(found, str):
        return found
    entry = next((each for each in found if each["boundary"] == f"block_{block}"), None)
    if entry is None:
        return "no such block"
    for key in keys:
        entry = entry[key]
    return entry


def blocks(run: Run) -> int:
    """How many blocks the finished student has by its diagnostics, 0 where there are none."""
    found = at_end(run, "removal")
    return len(found["blocks"]) if isinstance(found, Mapping) else 0
