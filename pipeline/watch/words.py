"""What is shown of a run and a capture, as text: the same in the terminal and on the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.contract.run_record import Metrics
from pipeline.watch.capture_state import CaptureView
from pipeline.watch.picture import Picture
from pipeline.watch.run_state import RunView, State

MARKS: dict[State, str] = {"running": "▶", "died": "✗", "failed": "✗", "stopped": "‖", "waiting": "·", "done": "✓"}
"""Beside the word, so that a glance finds it; never instead of it."""

HEADER = (
    *("run", "state", "phase", "step", "left", "last record"),
    *("loss", "KL", "val CE", "val KL", "tokens/s", "clipped", "guard rails"),
)
LEGEND = (
    "loss, KL: of the last update; val: last evaluation; nats a target token. left: later phases counted by their active layers. "
    "clipped: of the last 100 updates. guard rails: updates skipped, loss spikes, ends of the documents."
)


@dataclass(frozen=True)
class Row:
    """A run's cells under HEADER."""

    state: State
    cells: tuple[str, ...]


def rows(picture: Picture, runs: Sequence[RunView] | None = None) -> list[Row]:
    """A row a run, of all or of `runs`."""
    return [_row(picture, run) for run in (picture.runs if runs is None else runs)]


def _row(picture: Picture, run: RunView) -> Row:
    cells = (
        label(picture, run),
        f"{MARKS[run.state]} {run.state}",
        "" if run.phase is None else f"{run.phase + 1}/{run.phases or '?'}",
        steps(run),
        duration(run.seconds_left),
        "" if run.last_record_age is None else f"{duration(run.last_record_age)} ago",
        *(loss(value) for value in (run.loss, run.kl, run.val_ce, run.val_kl)),
        "" if run.tokens_per_second is None else f"{run.tokens_per_second:,.0f}",
        "" if run.clip_fraction is None else _finite_or_name(run.clip_fraction, ".0%"),
        guards(run),
    )
    return Row(run.state, cells)


def label(picture: Picture, run: RunView) -> str:
    """A run's name without the experiment's."""
    return printable(run.run.removeprefix(f"{picture.name}/"))


def steps(run: RunView) -> str:
    """Optimizer steps over all phases."""
    if run.steps is None:
        return f"{run.step:,}" if run.step else ""
    return f"{run.step:,}/{run.steps:,} {run.step / run.steps:.0%}" if run.step else f"0/{run.steps:,}"


def loss(value: float | None) -> str:
    """Nats; what is no number is said."""
    return "" if value is None else _finite_or_name(value, ".4f")


def _finite_or_name(value: float, spec: str) -> str:
    return format(value, spec) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def guards(run: RunView) -> str:
    """How often each guard rail spoke, none where none did."""
    words = {"nonfinite": "skipped", "loss_spike": "spike", "pass_end": "pass end"}
    return ", ".join(f"{count} {words[guard]}" for guard, count in run.guards.items() if count)


def duration(seconds: float | None) -> str:
    """In the two largest units."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    whole = int(seconds)
    for unit, size, smaller, small in (("d", 86_400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // small} {smaller}"
    return f"{whole} s"


def capture_line(capture: CaptureView) -> str:
    """One line about the cache."""
    problem = f"; cannot be looked at now ({capture.problem})" if capture.problem else ""
    if capture.state == "waiting":
        return printable(f"cache {capture.shard}: waiting, not captured yet{problem}")
    of = f" of {capture.shards:,}" if capture.shards is not None and capture.state != "done" else ""
    told = [f"{capture.shards_done:,}{of} shards", f"{capture.documents:,} documents, {capture.tokens:,} target tokens"]
    if capture.state == "running":
        told += [f"{capture.tokens_per_second:,.0f} tokens/s" if capture.tokens_per_second else "rate not known yet"]
        told += [f"about {duration(capture.seconds_left)} left"] if capture.seconds_left is not None else []
        told += [f"{capture.workers} {'worker' if capture.workers == 1 else 'workers'}"]
        told += [f"in hand {', '.join(capture.in_hand[:8])}"] if capture.in_hand else []
    return printable(f"cache {capture.shard}: {capture.state}, {', '.join(told)}{problem}")


def notes(picture: Picture) -> list[str]:
    """What a row has no room for: why a run ended, what is wrong with its records, what its guard rails said, what to run next."""
    found = []
    for run in picture.runs:
        told = [run.reason.removeprefix(f"{run.run}: "), *run.remarks] if run.reason else list(run.remarks)
        spoke = [record for record in run.events if record.get("guard") != "pass_end"]  # which is no trouble, and counted
        told += [event(spoke[-1])] if spoke and run.state != "done" else []
        found += [printable(f"{label(picture, run)}: {run.state}: {'; '.join(told)}")] if told else []
    return found + ([picture.hint] if picture.hint else [])


def event(record: Metrics) -> str:
    """One guard-rail record."""
    place = f"step {record['step']}"
    match record.get("guard"):
        case "nonfinite":
            return f"{place}: the gradient was not finite, the update was skipped (loss {record.get('loss')})"
        case "loss_spike":
            return f"{place}: the loss jumped to {_number(record, 'train/loss')} (mean before {_number(record, 'mean')})"
        case "pass_end":
            return f"{place}: the documents came to their end and began again"
        case other:
            return f"{place}: {other}"


def _number(record: Metrics, key: str) -> str:
    value = record.get(key)
    return f"{value:.4f}" if isinstance(value, int | float) else "?"


def printable(text: str) -> str:
    """On one line, without what could steer a terminal."""
    return "".join(character if character.isprintable() else " " for character in text)
