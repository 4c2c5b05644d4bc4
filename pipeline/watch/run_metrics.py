"""What the records of a run add up to while it goes on: the newest values, rates, guard rails, curves."""

import json
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any

from pipeline.contract.run_record import Metrics
from pipeline.watch.curve import Curve

RECENT = 20
"""Updates that a rate is a mean over."""

EVENTS = 5
"""Guard-rail records that are kept whole, the newest."""


@dataclass
class RunMetrics:
    """Sums over the lines of one metrics.jsonl, so that none is read twice.

    Attributes:
        newest: the last record of each kind.
        guards: how often each guard rail spoke; `events` are its last records.
        starts: steps after which a later phase began.
        unreadable: lines that are no record.
    """

    records: int = 0
    unreadable: int = 0
    newest: dict[str, Metrics] = field(default_factory=dict)
    guards: Counter[str] = field(default_factory=Counter)
    events: deque[Metrics] = field(default_factory=lambda: deque(maxlen=EVENTS))
    starts: set[int] = field(default_factory=set)
    loss: Curve = field(default_factory=Curve)
    val_ce: Curve = field(default_factory=Curve)
    place: tuple[int, int, int] | None = None
    _phase: int = -1
    _updates: "deque[tuple[float, float]]" = field(default_factory=lambda: deque(maxlen=RECENT))
    _updates_of_phase: int = 0
    _between: float = 0.0

    def take(self, line: bytes) -> None:
        """Add one line; one that is no record is counted and passed over."""
        try:
            record = json.loads(line)
            kind, place = str(record["kind"]), (int(record["step"]), int(record["phase"]), int(record["phase_step"]))
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
            self.unreadable += 1
            return
        self.records, self.place = self.records + 1, place
        self.newest[kind] = record
        self._enter(place)
        match kind:
            case "train":
                self._train(record, place)
            case "val":
                self.val_ce.add(place[1], place[0], number(record, "val/ce"))
            case "guard":
                self.guards[str(record.get("guard"))] += 1
                self.events.append(record)

    def _enter(self, place: tuple[int, int, int]) -> None:
        """Rates are of one depth: another phase begins them anew."""
        step, phase, phase_step = place
        if phase != self._phase:
            self._phase, self._updates_of_phase, self._between = phase, 0, 0.0
            self._updates.clear()
        if phase > 0:
            self.starts.add(step - phase_step)

    def _train(self, record: Metrics, place: tuple[int, int, int]) -> None:
        self.loss.add(place[1], place[0], number(record, "train/loss"))
        tokens, seconds = number(record, "tokens"), number(record, "perf/seconds")
        if math.isfinite(tokens) and seconds > 0:
            self._updates.append((tokens, seconds))
        self._updates_of_phase += 1
        between = [number(record, f"perf/seconds/{part}") for part in ("evaluate", "checkpoint")]
        self._between += math.fsum(seconds for seconds in between if math.isfinite(seconds))

    def value(self, kind: str, key: str) -> float | None:
        """Of the newest record of a kind; None where there is none, NaN as it stands there."""
        record = self.newest.get(kind)
        return None if record is None or key not in record else number(record, key)

    def tokens_per_second(self) -> float | None:
        """Target tokens of the newest updates by the seconds they took."""
        seconds = math.fsum(seconds for _, seconds in self._updates)
        return math.fsum(tokens for tokens, _ in self._updates) / seconds if seconds else None

    def seconds_per_step(self) -> float | None:
        """Of the newest updates, with a share of the phase's evaluations and checkpoints."""
        if not self._updates:
            return None
        update = math.fsum(seconds for _, seconds in self._updates) / len(self._updates)
        return update + self._between / self._updates_of_phase


def number(record: Metrics, key: str) -> float:
    """A value of a record, NaN where it is no number."""
    value: Any = record.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
