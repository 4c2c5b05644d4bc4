"""The cells of a table: one placement under one curriculum, a mean over seeds or the reason why there is none."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from pipeline.report.grid import Cell
from pipeline.report.records import Run

END = -1
"""The last phase of a run, whichever that is."""


@dataclass(frozen=True)
class SeedMean:
    """`value` is the mean over `by_seed`; `gap` says why there is no value."""

    by_seed: dict[int | None, float]
    gap: str = ""
    left_out: tuple[str, ...] = ()

    @property
    def value(self) -> float | None:
        return None if self.gap else fmean(self.by_seed.values())

    @property
    def shown(self) -> float | str:
        return self.gap or fmean(self.by_seed.values())

    @property
    def n(self) -> int:
        return 0 if self.gap else len(self.by_seed)


def seed_mean(runs: Sequence[Run], curriculum: str, norm: str, measure: str = "ce", phase: int = END) -> SeedMean:
    """Mean over seeds of one measure at the end of one phase, controls apart; runs with a problem are left out and named.

    Two runs of one seed are no two samples: such a cell is a gap, not a mean.
    """
    return seed_mean_of(runs, curriculum, norm, lambda run: _value(run, measure, phase))


def seed_mean_of(runs: Sequence[Run], curriculum: str, norm: str, measure: Callable[[Run], Cell]) -> SeedMean:
    """As `seed_mean` for any measure of a run; a text that it gives for one run is the cell's gap."""
    members = [run for run in runs if (run.curriculum, run.norm) == (curriculum, norm) and not run.control]
    sound = [run for run in members if not run.problem]
    left_out = tuple(f"{run.label} ({run.problem_kind})" for run in members if run.problem)
    if not sound:
        return SeedMean({}, ", ".join(sorted({run.problem_kind for run in members})) or "no run", left_out)
    seed, count = Counter(run.seed for run in sound).most_common(1)[0]
    if count > 1:
        return SeedMean({}, f"{count} runs of seed {seed}", tuple(run.label for run in sound if run.seed == seed))
    values = {run.seed: measure(run) for run in sound}
    gap = next((value for value in values.values() if not isinstance(value, int | float)), "")
    if gap != "":
        return SeedMean({}, str(gap or "missing"), left_out)
    return SeedMean({seed: float(value) for seed, value in values.items() if isinstance(value, int | float)}, "", left_out)


def _value(run: Run, measure: str, phase: int) -> float:
    endpoint = run.phases[-1] if phase == END else run.phase(phase)
    value = endpoint.values[measure] if endpoint else None
    assert value is not None, f"{run.label}: a run without a problem has every value"
    return value


def difference(left: float | None, right: float | None) -> float | None:
    """left - right, None where either is missing."""
    return None if left is None or right is None else left - right
