"""What a reader must know before the numbers: mixed inputs, seeds, problems, and how little one seed says."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.report.records import INPUTS, Run
from pipeline.report.samples import Sample

PAIRED_BY = ("norm", "curriculum", "seed", "learning_rate", "name")
"""Settings in which the runs of a report are meant to differ, controls apart."""


def distinct(values: Sequence[Any]) -> list[Any]:
    """The values that are there, each once, in order of appearance."""
    return list({str(value): value for value in values if value is not None}.values())


def mixed_inputs(runs: Sequence[Run]) -> list[str]:
    """One sentence for each thing that should be the same in all runs and is not."""
    notes = []
    for what, key in INPUTS.items():
        values = distinct([run.config.get(key) for run in runs])
        if len(values) > 1:
            notes.append(f"Different {what} ({', '.join(map(str, values))}): the runs were not trained on the same targets.")
    for what, key in (("numbers of validation tokens", "val_tokens"), ("kinds of KL", "kl_kind")):
        values = distinct([run.result.get(key) for run in runs])
        if len(values) > 1:
            notes.append(f"Different {what} ({', '.join(map(str, values))}): these values do not compare across runs.")
    return notes + _mixed_settings([run for run in runs if not run.control]) + _several_seeds(runs) + _controls(runs)


def _controls(runs: Sequence[Run]) -> list[str]:
    by_control: dict[str, list[str]] = {}
    for run in runs:
        if run.control:
            by_control.setdefault(run.control, []).append(run.label)
    said = "; ".join(f"{', '.join(labels)} ({control})" for control, labels in by_control.items())
    return [f"Controls, not in tables that compare placement and curriculum, nor in the figures: {said}."] if said else []


def _several_seeds(runs: Sequence[Run]) -> list[str]:
    seeds = distinct([run.seed for run in runs])
    return [f"Several seeds ({', '.join(map(str, seeds))}): table cells are means over seeds."] if len(seeds) > 1 else []


def _mixed_settings(runs: Sequence[Run]) -> list[str]:
    flat = [dict(flatten(run.config.get("settings", {}))) for run in runs if run.config]
    notes = []
    for key in sorted({key for settings in flat for key in settings} - set(PAIRED_BY)):
        values = sorted({str(settings.get(key, "not set")) for settings in flat})
        if len(values) > 1:
            notes.append(f"{key} = {' or '.join(values)}")
    return [f"Settings differ between runs beyond placement, curriculum and seed: {'; '.join(notes)}."] if notes else []


def flatten(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def problems(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(run, what is wrong) for every problem and remark."""
    return [(run.label, text) for run in runs for text in (run.problem, run.curves.remark) if text]


def left_out(cells: Sequence[Sample]) -> list[str]:
    names = distinct([name for cell in cells for name in cell.left_out])
    return [f"Not in these numbers: {', '.join(names)}."] if names else []


def seed_note(runs: Sequence[Run], cells: Sequence[Sample]) -> list[str]:
    """How many seeds stand behind the filled cells, and what that is worth."""
    counts = sorted({cell.n for cell in cells if cell.n})
    if counts == [1]:
        return [f"One seed a cell, {_training_length(runs)}: this says nothing about placement.", *unequal_seeds(cells)]
    if not counts:
        return []
    spread = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else str(counts[0])
    return [f"{spread} seeds a cell; values are means over seeds.", *unequal_seeds(cells)]


def _training_length(runs: Sequence[Run]) -> str:
    for curriculum in ("joint", "grow"):
        tokens = sorted({run.number("tokens_total") or 0 for run in runs if run.curriculum == curriculum and not run.problem})
        if tokens:
            span = f"{tokens[0]:,}" if len(tokens) == 1 else f"{tokens[0]:,} to {tokens[-1]:,}"
            return f"{span} target tokens a {curriculum} run"
    return "target tokens unknown"


def unequal_seeds(cells: Sequence[Sample]) -> list[str]:
    seeds = {tuple(sorted(map(str, cell.by_seed))) for cell in cells if cell.n}
    return ["The cells do not hold the same seeds: a difference is over the seeds that both hold."] if len(seeds) > 1 else []
