"""One run as it stands: from its folder alone, which another process writes at the same time.

waiting   not started; phases may have been taken over from another run already
running   started and not ended: its process lives, or is of another machine, of which nothing is known here
done      result.json is there
stopped   a signal ended it; the same command goes on
failed    an error ended it; the reason is on record
died      its process is gone and wrote no reason: killed, out of memory, or the machine went down
"""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from pipeline.contract.errors import ManifestError, RunError
from pipeline.contract.manifest.strict import parse
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.process import is_alive, is_gone
from pipeline.contract.run_record import Metrics, RunFolder
from pipeline.watch.run_metrics import RunMetrics
from pipeline.watch.tail import Tail

State = Literal["waiting", "running", "done", "stopped", "failed", "died"]
STATES: tuple[State, ...] = ("running", "died", "failed", "stopped", "waiting", "done")
"""What wants to be seen first stands first."""

GUARDS = ("nonfinite", "loss_spike", "pass_end")
QUIET_SECONDS = 600.0
"""Without a record for so long, a run of another machine is said to be silent."""


@dataclass(frozen=True)
class RunView:
    """What is shown of a run. Losses in nats a target token; None is not known, NaN stood in a record.

    Attributes:
        reason: how it ended, or why it is not known whether it did.
        remarks: what is wrong with its records.
        phase: index of the phase it is in, of `phases`.
        step: optimizer steps over all phases, of `steps`.
        seconds_left: later phases counted by their active layers; None unless it runs.
        guards: how often each guard rail spoke: `nonfinite` are steps passed over. `events` are its last records.
        last_record_age: seconds since the run wrote its last record, by the file's time.
    """

    run: str
    state: State
    reason: str
    remarks: tuple[str, ...]
    norm: str | None
    curriculum: str | None
    seed: int | None
    starts: int
    started: str | None
    phase: int | None
    phases: int | None
    active_layers: int | None
    step: int
    steps: int | None
    loss: float | None
    kl: float | None
    val_ce: float | None
    val_kl: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    clip_fraction: float | None
    guards: dict[str, int] = field(default_factory=dict)
    events: tuple[Metrics, ...] = ()
    last_record_age: float | None = None


class RunWatch:
    """One run, looked at again and again. `planned` are the settings it will have where it has not begun."""

    def __init__(self, name: str, folder: RunFolder, planned: StudentManifest | None = None) -> None:
        self.name, self.folder, self._planned = name, folder, planned
        self.metrics, self._tail = RunMetrics(), Tail(folder.metrics_path)

    def look(self) -> RunView:
        """The run now. Nothing that stands in its folder makes this raise."""
        remarks: list[str] = []
        age = self._follow(remarks)
        config, result = self._read("config", dict, remarks), self._read("result", dict, remarks)
        starts = [start for start in self._read("provenance", list, remarks) or [] if isinstance(start, dict)]
        state, reason = standing(result is not None, starts[-1] if starts and config is not None else None, age)
        settings = self._settings(config, remarks)
        if shared := self._read("shared_phases", list, remarks):
            remarks.append(f"first phases taken over from {', '.join(dict.fromkeys(map(str, shared)))}")
        return self._view(state, reason, remarks, settings, starts, age)

    def unread(self) -> int:
        """Bytes of metrics.jsonl that the next look has to read, if the file goes on where it was left."""
        return self._tail.unread()

    def _follow(self, remarks: list[str]) -> float | None:
        """Read what is new in metrics.jsonl; returns its age in seconds, None where there is none."""
        try:
            self._tail.follow(lambda line: self.metrics.take(line), self._forget)
            age = max(0.0, time.time() - self.folder.metrics_path.stat().st_mtime)
        except FileNotFoundError:
            age = None
        except OSError as error:
            remarks.append(f"metrics.jsonl cannot be read at the moment ({error.strerror})")
            age = None
        if self.metrics.unreadable:
            remarks.append(f"metrics.jsonl has {self.metrics.unreadable:,} lines that are no records; they are passed over")
        return age

    def _forget(self) -> None:
        self.metrics = RunMetrics()

    def _read(self, name: str, form: type, remarks: list[str]) -> Any:
        """A record of the folder, None where it is not there or, with a remark, where it is no such thing."""
        with suppress(RunError, OSError, UnicodeDecodeError, RecursionError):
            value = self.folder.read(name)
            if value is None or isinstance(value, form):
                return value
        remarks.append(f"{name}.json cannot be read")
        return None

    def _settings(self, config: dict[str, Any] | None, remarks: list[str]) -> StudentManifest | None:
        """Those it was started with; what an earlier or later version wrote may not be ours to read."""
        if config is None:
            return self._planned
        with suppress(ManifestError):
            return parse(StudentManifest, config.get("settings"), "config.json")
        remarks.append("config.json holds settings that this version does not know; steps are as planned")
        return self._planned

    def _view(
        self,
        state: State,
        reason: str,
        remarks: list[str],
        settings: StudentManifest | None,
        starts: list[dict[str, Any]],
        age: float | None,
    ) -> RunView:
        metrics = self.metrics
        step, phase, phase_step = metrics.place or (0, 0, 0)
        left = seconds_left(settings, phase, phase_step, metrics.seconds_per_step()) if settings and state == "running" else None
        return RunView(
            run=self.name,
            state=state,
            reason=reason,
            remarks=tuple(remarks),
            **_asked(settings, phase),
            starts=len(starts),
            started=str(starts[-1].get("started", "")) or None if starts else None,
            phase=phase if metrics.place else None,
            step=step,
            loss=metrics.value("train", "train/loss"),
            kl=metrics.value("train", "train/kl"),
            val_ce=metrics.value("val", "val/ce"),
            val_kl=metrics.value("val", "val/kl"),
            tokens_per_second=metrics.tokens_per_second(),
            seconds_left=left,
            clip_fraction=metrics.value("train", "optim/clip_fraction"),
            guards={guard: metrics.guards[guard] for guard in GUARDS},
            events=tuple(metrics.events),
            last_record_age=age,
        )


def _asked(settings: StudentManifest | None, phase: int) -> dict[str, Any]:
    """What the settings say of a run in a phase; None where there are none to read."""
    if settings is None:
        return dict.fromkeys(("norm", "curriculum", "seed", "phases", "active_layers", "steps"))
    depths = settings.depths
    return {
        "norm": settings.norm,
        "curriculum": settings.curriculum,
        "seed": settings.seed,
        "phases": len(depths),
        "active_layers": depths[phase] * settings.model.layers_per_block if 0 <= phase < len(depths) else None,
        "steps": len(depths) * settings.steps,
    }


def standing(has_result: bool, start: dict[str, Any] | None, age: float | None) -> tuple[State, str]:
    """A run's state and the reason for it, from the last entry of its provenance and the age of its last record."""
    if has_result:
        return "done", ""
    if start is None:
        return "waiting", ""
    if "ended" in start:
        return ("stopped" if start.get("stopped") else "failed"), str(start["ended"])
    mark = str(start.get("process", ""))
    if is_gone(mark):
        return "died", "its process is gone and left no reason; the same command goes on from the last checkpoint"
    if is_alive(mark):
        return "running", ""
    where = "on another machine" if mark else "started by an earlier version, which names no process"
    silent = age is not None and age > QUIET_SECONDS
    return "running", f"{where}; {'silent for long: it may have died' if silent else 'running as far as can be told here'}"


def seconds_left(settings: StudentManifest, phase: int, phase_step: int, per_step: float | None) -> float | None:
    """Until the last step, when each of this phase takes `per_step` seconds and later ones in proportion to their active layers."""
    depths: Sequence[int] = settings.depths
    if per_step is None or not math.isfinite(per_step) or not 0 <= phase < len(depths):
        return None
    later = sum(depth / depths[phase] for depth in depths[phase + 1 :])
    return per_step * (max(0, settings.steps - phase_step) + settings.steps * later)
