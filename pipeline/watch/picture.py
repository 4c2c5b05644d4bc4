"""An experiment at one moment: its capture, its runs, and one line about them all."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pipeline.watch.capture_state import CaptureView, CaptureWatch
from pipeline.watch.run_state import STATES, RunView, RunWatch


@dataclass(frozen=True)
class Picture:
    """One look. `hint` says what to run where nothing goes on and something is left; `report` is a page that is there."""

    name: str
    at: float
    capture: CaptureView | None
    runs: tuple[RunView, ...]
    hint: str
    report: str | None

    @property
    def is_over(self) -> bool:
        """Whether every run is done."""
        return all(run.state == "done" for run in self.runs)

    @property
    def summary(self) -> str:
        """One line: how many runs are in which state, and the steps of all."""
        counts = Counter(run.state for run in self.runs)
        states = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
        done, steps = sum(run.step for run in self.runs), sum(run.steps or 0 for run in self.runs)
        share = f", {done:,} of {steps:,} steps ({done / steps:.0%})" if steps else ""
        return f"{len(self.runs)} {'run' if len(self.runs) == 1 else 'runs'}: {states}{share}"

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "experiment": self.name,
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.at)),
            "summary": self.summary,
            "hint": self.hint,
            "capture": self.capture and asdict(self.capture),
            "runs": [asdict(run) for run in self.runs],
            "report": self.report,
        }


class Watch:
    """Runs and the capture they share, looked at together. `command` makes what is not there; `report` is where its page would be."""

    def __init__(
        self, name: str, runs: Sequence[RunWatch], capture: CaptureWatch | None = None, command: str = "", report: Path | None = None
    ) -> None:
        self.name, self.runs, self._capture, self._command, self._report = name, list(runs), capture, command, report

    def look(self) -> Picture:
        """Everything as it stands now; writes nothing anywhere."""
        capture = self._capture.look() if self._capture else None
        runs = tuple(run.look() for run in self.runs)
        report = str(self._report) if self._report and self._report.is_file() else None
        return Picture(self.name, time.time(), capture, runs, self._hint(capture, runs), report)

    def _hint(self, capture: CaptureView | None, runs: Sequence[RunView]) -> str:
        going = (capture and capture.state == "running") or any(run.state == "running" for run in runs)
        if going or not self._command or all(run.state == "done" for run in runs):
            return ""
        begun = (capture and capture.state != "waiting") or any(run.state != "waiting" for run in runs)
        what = "nothing is captured or trained at the moment" if begun else "nothing is there yet"
        return f"{what}; '{self._command}' {'goes on with what is left' if begun else 'makes it'}"
