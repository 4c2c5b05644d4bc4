"""Which learning rate a cell is shown at: placements want different ones, so a comparison at one rate may show the rate alone."""

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from pipeline.report.cells import seed_mean
from pipeline.report.records import Run


def rates(runs: Sequence[Run]) -> list[float]:
    """Every learning rate that is recorded, rising."""
    return sorted({run.learning_rate for run in runs if run.learning_rate is not None})


def at_rate(runs: Sequence[Run], rate: float) -> list[Run]:
    return [run for run in runs if run.learning_rate == rate]


def at_best(runs: Sequence[Run]) -> list[Run]:
    """Of each cell, and of each control, the runs at its best learning rate; a run that records none stays."""
    best = {key: best_rate([run for run in runs if _cell(run) == key]) for key in {_cell(run) for run in runs}}
    return [run for run in runs if run.learning_rate in (best[_cell(run)], None)]


def best_rate(members: Sequence[Run]) -> float | None:
    """The rate with the lowest mean CE over the seeds that all candidates hold; None where no rate is recorded.

    Candidates are the rates with the most whole runs: a rate at which seeds failed is not judged by those that did not.
    """
    plain = [replace(run, control="") for run in members]
    ends = {rate: seed_mean(at_rate(plain, rate), members[0].curriculum, members[0].norm) for rate in rates(plain)}
    most = max((sample.n for sample in ends.values()), default=0)
    candidates = {rate: sample.by_seed for rate, sample in ends.items() if sample.n == most}
    shared = set.intersection(*map(set, candidates.values())) if candidates else set()
    means = {rate: fmean([by_seed[seed] for seed in shared or by_seed] or [0.0]) for rate, by_seed in candidates.items()}
    return min(means, key=lambda rate: means[rate], default=None)


def chosen_words(runs: Sequence[Run]) -> list[str]:
    """Which rate each cell is shown at and why that is said, where there are several."""
    if len(rates(runs)) < 2:
        return []
    cells = dict.fromkeys(_cell(run) for run in runs if not run.control)
    best = {cell: best_rate([run for run in runs if _cell(run) == cell]) for cell in cells}
    said = ", ".join(f"{norm}-{curriculum} {rate:g}" for (curriculum, norm, _), rate in best.items() if rate is not None)
    return [
        f"Several learning rates ({', '.join(f'{rate:g}' for rate in rates(runs))}): means and figures show each cell at its best of them "
        f"by end CE ({said}). Placements want different rates, and one rate can decide a sign; 'Differences and their noise' has every "
        "rate. A best rate is chosen on the CE that is shown, and one at the end of the list may not be the best there is."
    ]


def _cell(run: Run) -> tuple[str, str, str]:
    return run.curriculum, run.norm, run.control
