"""Which runs of a report are controls: they differ from their curriculum's plain runs in more than placement and seed.

A control stands in the tables of phases, budgets and runs; a mean of table 1 over a plain run and a control would mean nothing.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.contract.manifest.student import StudentManifest
from pipeline.report.notes import flatten
from pipeline.report.records import Run

INITIALIZATION = ("model.initializer_range", "model.new_block")
SETS_APART = ("phase_blocks", "data", "order", "train_documents", "freeze", "alpha", "gamma", *INITIALIZATION)
"""Settings that make a control. Others that differ (a learning rate) leave two runs of a cell, which the tables refuse to average."""


def mark_controls(runs: Sequence[Run]) -> tuple[Run, ...]:
    """`runs` with `control` filled in: the settings in which one is not as most runs of its curriculum, a tie being the default's."""
    plain = {curriculum: _plain([run for run in runs if run.curriculum == curriculum]) for curriculum in {run.curriculum for run in runs}}
    return tuple(replace(run, control=_differences(run, plain[run.curriculum])) for run in runs)


def _plain(runs: Sequence[Run]) -> dict[str, Any]:
    return {key: _most_common([_value(run, key) for run in runs], _default(key)) for key in SETS_APART}


def _default(key: str) -> Any:
    section, _, inner = key.partition(".")
    default = StudentManifest.model_fields[section].get_default()
    return getattr(default, inner) if inner else default


def _most_common(values: Sequence[Any], default: Any) -> Any:
    counts = Counter(map(str, values))
    shown = str(default.model_dump() if hasattr(default, "model_dump") else default)
    return max(values, key=lambda value: (counts[str(value)], str(value) == shown))


def _value(run: Run, key: str) -> Any:
    return dict(flatten(run.config.get("settings", {}))).get(key) if "." in key else run.config.get("settings", {}).get(key)


def _differences(run: Run, plain: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={_value(run, key)}" for key in SETS_APART if str(_value(run, key)) != str(plain[key])) if run.config else ""
