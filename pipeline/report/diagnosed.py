"""Numbers out of the records of `pipeline diagnose`: each a number, or the text that stands where it would.

Checkpoints between phases are for a closer look; tables and figures take the phases' ends.
"""

from collections.abc import Sequence
from typing import Any

from pipeline.report.grid import Cell
from pipeline.report.records import Run, finite

NOT_DIAGNOSED = "not diagnosed"
NOT_RECORDED = "not in the record"


def phase_ends(run: Run, name: str) -> dict[int, Any]:
    """What a diagnostic found at the end of each phase that the run should have: its finding, or a text."""
    record = run.diagnostics.get(name)
    if record is None:
        return {}
    entries = {str(look(each, "checkpoint")): look(each, "found") for each in _list(look(record, "checkpoints"))}
    return {phase: entries.get(f"phase-{phase}", f"phase-{phase} {NOT_RECORDED}") for phase in range(run.expected_phases)}


def at_end(run: Run, name: str) -> Any:
    """What it found in the finished student, or a text."""
    ends = phase_ends(run, name)
    return ends[max(ends)] if ends else NOT_DIAGNOSED


def look(found: Any, *keys: str | int) -> Any:
    """What lies under `keys`, or a text: the one on the way there, or that the record has no such thing."""
    for key in keys:
        if isinstance(found, str):
            return found
        try:
            found = found[key]
        except (KeyError, IndexError, TypeError):
            return NOT_RECORDED
    return found


def number(found: Any, *keys: str | int) -> Cell:
    """As `look`, for a number: what is no finite one is said."""
    value = look(found, *keys)
    if isinstance(value, str) or value is None:
        return value
    return "not a number" if finite(value) is None else value


def removal(run: Run, block: int, measure: str) -> Cell:
    """`delta_ce`, `standard_error_documents` or `angular_distance` of a block of the finished student."""
    found = at_end(run, "removal")
    measured = look(found, "blocks")
    return "no such block" if isinstance(measured, list) and block >= len(measured) else number(measured, block, measure)


def transition(run: Run, at: int, source: str, measure: str) -> Cell:
    """A measure of the transition into phase `at` + 1, from the training `loss` or the `probe` on the fixed slice."""
    record = run.diagnostics.get("transition")
    if record is None:
        return NOT_DIAGNOSED
    found = look(record, "found", "transitions")
    return number(found, at, source, measure) if isinstance(found, list) and at < len(found) else "no transition"


def recovery_share(run: Run, at: int) -> Cell:
    """Steps to recovery over the steps of a phase."""
    steps, phase = transition(run, at, "loss", "recovery_steps"), finite(run.config.get("settings", {}).get("steps"))
    return steps if steps is None or isinstance(steps, str) else steps / phase if phase else NOT_RECORDED


def boundary(found: Any, block: int, keys: Sequence[str]) -> Cell:
    """A measure of a boundary or of a token type there, in one finding; boundaries are counted from after block 0."""
    if isinstance(found, str):
        return found
    entry = next((each for each in _list(found) if look(each, "boundary") == f"block_{block}"), None)
    return "no such block" if entry is None else number(entry, *keys)


def histogram(run: Run) -> dict[str, Any] | str:
    """`counts` and `edges` of per-token RMS after the finished student's last block."""
    found = look(at_end(run, "boundary"), -1, "histogram")
    if isinstance(found, str):
        return found
    counts, edges = look(found, "counts"), look(found, "edges")
    if not counts or not isinstance(counts, list) or len(_list(edges)) != len(counts) + 1:
        return str(look(found, "missing"))
    if any(finite(value) is None for value in [*counts, *edges]):
        return "not a number"
    return {"counts": counts, "edges": edges}


def blocks(run: Run) -> int:
    """How many blocks the finished student has by its diagnostics, 0 where there are none."""
    return len(_list(look(at_end(run, "removal"), "blocks")))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
