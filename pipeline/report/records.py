"""Run folders as the report sees them: whole, or carried along with the reason why not.

Nothing here raises for a bad run. A `problem` takes the run's number out of every mean and stands in its place; a
`remark` leaves the number standing and is said beside it.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.contract.errors import RunError
from pipeline.contract.run_record import RunFolder

Point = tuple[int, float]
"""Optimizer steps over all phases, value in nats a target token."""

MEASURES = ("ce", "kl", "kd", "ppl")
INPUTS = {"shards": "shard", "teachers": "teacher", "cache fingerprints": "cache_fingerprint"}
"""Keys of config.json by what the values are called where they differ."""


@dataclass(frozen=True)
class Phase:
    """The endpoint of one phase; CE, KL and KD in nats a target token, PPL = exp(CE)."""

    index: int
    norm: str
    active_layers: int | None
    steps: int | None
    values: Mapping[str, float | None]

    def faults(self) -> list[str]:
        """Measures that are no finite number."""
        return [f"val_{name} of phase {self.index}" for name, value in self.values.items() if finite(value) is None]


@dataclass(frozen=True)
class Curves:
    """What metrics.jsonl holds for the figures; `boundaries` are the steps at which a later phase begins."""

    train_loss: tuple[Point, ...] = ()
    val_ce: tuple[Point, ...] = ()
    boundaries: tuple[int, ...] = ()
    remark: str = ""


@dataclass(frozen=True)
class Run:
    """One run. `problem` is empty or "kind: detail"; `label` is unique among the runs of a report; `control` says what sets it apart."""

    label: str
    name: str
    norm: str
    curriculum: str
    seed: int | None
    config: Mapping[str, Any]
    result: Mapping[str, Any]
    provenance: Any
    phases: tuple[Phase, ...]
    expected_phases: int
    curves: Curves
    problem: str
    diagnostics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    control: str = ""

    @property
    def problem_kind(self) -> str:
        return self.problem.partition(":")[0]

    @property
    def learning_rate(self) -> float | None:
        return finite(self.config.get("settings", {}).get("learning_rate"))

    @property
    def inputs(self) -> dict[str, Any]:
        """What must be the same in runs that are compared; None where it is not recorded."""
        recorded = {what: self.config.get(key) for what, key in INPUTS.items()}
        return {**recorded, "validation documents": self.result.get("val_tokens")}

    def phase(self, index: int) -> Phase | None:
        return next((phase for phase in self.phases if phase.index == index), None)

    def number(self, key: str) -> float | None:
        """One finite number of result.json, None when it is not there."""
        return finite(self.result.get(key))


def finite(value: Any) -> float | None:
    """`value` if it is a finite number."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def read_runs(folders: Sequence[RunFolder]) -> tuple[Run, ...]:
    """Read every folder, in the given order; labels are the last part of a run's name where that is unique."""
    runs = [_read_run(folder) for folder in folders]
    short = Counter(run.label for run in runs)
    return tuple(run if short[run.label] == 1 else replace(run, label=run.name) for run in runs)


def _read_run(folder: RunFolder) -> Run:
    records, unreadable = _read_records(folder)
    config, result = records["config"], records["result"]
    settings = config.get("settings", {})
    curriculum = str(settings.get("curriculum") or result.get("curriculum") or "unknown")
    norm = str(settings.get("norm") or result.get("norm") or "unknown")
    name = str(config.get("run") or result.get("run") or folder.path.name)
    phases = _phases(result, norm)
    run = Run(
        label=name.rpartition("/")[2],
        name=name,
        norm=norm,
        curriculum=curriculum,
        seed=_count(settings.get("seed", result.get("seed"))),
        config=config,
        result=result,
        provenance=records["provenance"],
        phases=phases,
        expected_phases=_expected_phases(settings, curriculum, len(phases)),
        curves=_curves(folder),
        problem="",
        diagnostics=_diagnostics(folder),
    )
    return replace(run, problem=unreadable or _problem(run))


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None


def _expected_phases(settings: Mapping[str, Any], curriculum: str, found: int) -> int:
    depths, shape = settings.get("phase_blocks"), settings.get("model")
    if isinstance(depths, list) and depths:
        return len(depths)
    blocks = _count(shape.get("blocks")) if isinstance(shape, Mapping) else None
    return 1 if curriculum == "joint" else blocks or max(1, found)


def _read_records(folder: RunFolder) -> tuple[dict[str, Any], str]:
    """config, result (empty where they are not there) and provenance; and which could not be read."""
    records: dict[str, Any] = {}
    faults = []
    for name in ("config", "result", "provenance"):
        try:
            records[name] = folder.read(name)
        except RunError:
            records[name] = None
            faults.append(f"{name}.json is not JSON")
    for name in ("config", "result"):
        if not isinstance(records[name], Mapping | None):
            faults.append(f"{name}.json holds no mapping")
        records[name] = records[name] if isinstance(records[name], Mapping) else {}
    if not isinstance(records["config"].get("settings", {}), Mapping):
        faults.append("config.json has no mapping of settings")
        records["config"] = {**records["config"], "settings": {}}
    return records, f"unreadable: {', '.join(faults)}" if faults else ""


def _diagnostics(folder: RunFolder) -> dict[str, Any]:
    """The records of `pipeline diagnose` that can be read, by name."""
    found = {}
    for path in sorted((folder.path / "diagnostics").glob("*.json")):
        with suppress(RunError):
            found[path.stem] = folder.read(f"diagnostics/{path.stem}")
    return {name: record for name, record in found.items() if isinstance(record, Mapping)}


def _phases(result: Mapping[str, Any], norm: str) -> tuple[Phase, ...]:
    phases = [
        Phase(
            index=position if (index := _count(entry.get("index"))) is None else index,
            norm=str(entry.get("norm", norm)),
            active_layers=_count(entry.get("active_layers")),
            steps=_count(entry.get("steps")),
            values={name: entry.get(f"val_{name}") for name in MEASURES},
        )
        for position, entry in enumerate(_list(result.get("phases")))
        if isinstance(entry, Mapping)
    ]
    return tuple(sorted(phases, key=lambda phase: phase.index))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _problem(run: Run) -> str:
    if not run.config:
        return "no settings: config.json is missing"
    if not run.result:
        last = max((step for step, _ in run.curves.train_loss + run.curves.val_ce), default=0)
        return f"unfinished: no result.json, the last record is of step {last:,}"
    absent = [str(index) for index in range(run.expected_phases) if run.phase(index) is None]
    if absent:
        return f"phase missing: result.json lacks phase {', '.join(absent)} of 0 to {run.expected_phases - 1}"
    faults = [fault for phase in run.phases for fault in phase.faults()]
    return f"not a number: {', '.join(faults)}" if faults else ""


def _curves(folder: RunFolder) -> Curves:
    train: list[Point] = []
    val: list[Point] = []
    boundaries = set()
    remark = ""
    try:
        for record in folder.metrics():
            step = int(record.get("step", 0))
            if record.get("phase"):
                boundaries.add(step - int(record.get("phase_step", step)))
            for series, kind, key in ((train, "train", "train/loss"), (val, "val", "val/ce")):
                if record.get("kind") == kind:
                    value = finite(record.get(key))
                    series.append((step, math.nan if value is None else value))
    except (ValueError, TypeError, AttributeError):
        remark = "metrics.jsonl has a line that is no record; the figures stop before it"
    return Curves(tuple(train), tuple(val), tuple(sorted(boundaries - {0})), remark or _not_finite(train, val))


def _not_finite(train: list[Point], val: list[Point]) -> str:
    counts = {"training steps": train, "evaluations": val}
    bad = {what: sum(math.isnan(value) for _, value in points) for what, points in counts.items()}
    said = [f"{count:,} {what}" for what, count in bad.items() if count]
    return f"{' and '.join(said)} without a finite value; the lines of the figures have gaps there" if said else ""
