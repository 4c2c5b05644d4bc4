"""The cells of a table: one placement under one curriculum, a value a seed or the reason why there is none."""

from collections import Counter
from collections.abc import Callable, Sequence

from pipeline.report.grid import Cell
from pipeline.report.records import Run, finite
from pipeline.report.samples import Sample, different_inputs

END = -1
"""The last phase of a run, whichever that is."""


def seed_mean(runs: Sequence[Run], curriculum: str, norm: str, measure: str = "ce", phase: int = END) -> Sample:
    """One measure at the end of one phase, by seed, controls apart; runs with a problem are left out and named.

    Two runs of one seed are no two samples, and runs on different data no sample of one thing: such a cell is a gap.
    """
    return seed_mean_of(runs, curriculum, norm, lambda run: _value(run, measure, phase))


def seed_mean_of(runs: Sequence[Run], curriculum: str, norm: str, measure: Callable[[Run], Cell]) -> Sample:
    """As `seed_mean` for any measure of a run; a text that it gives for one run is the cell's gap."""
    members = [run for run in runs if (run.curriculum, run.norm) == (curriculum, norm) and not run.control]
    sound = [run for run in members if not run.problem]
    left_out = tuple(f"{run.label} ({run.problem_kind})" for run in members if run.problem)
    gap, at_fault = _no_sample(members, sound)
    if gap:
        return Sample({}, gap, at_fault or left_out)
    values = {run.seed: measure(run) for run in sound}
    numbers = {seed: float(number) for seed, value in values.items() if (number := finite(value)) is not None}
    missing = [value for seed, value in values.items() if seed not in numbers]
    if missing:
        return Sample({}, missing[0] if isinstance(missing[0], str) else "missing", left_out)
    return Sample(numbers, "", left_out, sound[0].inputs)


def _no_sample(members: Sequence[Run], sound: Sequence[Run]) -> tuple[str, tuple[str, ...]]:
    """Why the runs of a cell are no sample, and which are at fault."""
    if not sound:
        return ", ".join(sorted({run.problem_kind for run in members})) or "no run", ()
    different = different_inputs([run.inputs for run in sound])
    if different:
        return f"different {different}", tuple(run.label for run in sound)
    seed, count = Counter(run.seed for run in sound).most_common(1)[0]
    return (f"{count} runs of seed {seed}", tuple(run.label for run in sound if run.seed == seed)) if count > 1 else ("", ())


def _value(run: Run, measure: str, phase: int) -> float:
    endpoint = run.phases[-1] if phase == END else run.phase(phase)
    value = endpoint.values[measure] if endpoint else None
    assert value is not None, f"{run.label}: a run without a problem has every value"
    return value


def difference(left: float | None, right: float | None) -> float | None:
    """left - right, None where either is missing."""
    return None if left is None or right is None else left - right
