"""A run folder: what was asked, what happened, what came out.

config.json        settings, shard, cache fingerprint; written before the first step
provenance.json    one entry for each time the run was started: versions, machine, process, and how that ended
shared_phases.json the runs that trained the first phases, where these were taken over
metrics.jsonl      one JSON object a line: train steps, evaluations, probes, events, in order
phases/phase-P/    the student at the end of phase P, a Hugging Face folder
snapshots/step-N/  the student after N steps, the same, where a run was asked for them
checkpoints/       what a restart needs; `latest` names the one that counts
tensorboard/       metrics.jsonl as event files
diagnostics/       what `pipeline diagnose` found, one JSON record each
result.json        written last; a run without it is not finished
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.contract.atomic_io import write_json, write_text
from pipeline.contract.errors import RunError

Metrics = dict[str, Any]
"""Keys: `kind` (train, val, probe, event, guard), `step` (optimizer steps over all phases), `phase`, `phase_step`, values by a/path."""


@dataclass(frozen=True)
class RunFolder:
    """Paths and records of one run."""

    path: Path

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def phases(self) -> Path:
        return self.path / "phases"

    def phase(self, index: int) -> Path:
        return self.phases / f"phase-{index}"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    def read(self, name: str) -> Any:
        """Read one JSON record (`config`, `provenance`, `result`, `diagnostics/NAME`), None when it is not there.

        Raises:
            RunError: when the file is not JSON.
        """
        path = self.path / f"{name}.json"
        if not path.is_file():
            return None
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path}: is not JSON ({error}); restore the file or remove the run folder") from None

    def write(self, name: str, value: Any) -> None:
        write_json(self.path / f"{name}.json", value)

    def metrics(self) -> Iterator[Metrics]:
        """Every whole line of metrics.jsonl; a torn last line, left by a kill, is not a record."""
        if not self.metrics_path.is_file():
            return
        with self.metrics_path.open(encoding="utf-8") as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)

    def keep_metrics(self, wanted: Iterable[Metrics]) -> None:
        """Rewrite metrics.jsonl with `wanted` only: a resumed run drops what it will do again."""
        write_text(self.metrics_path, "".join(json.dumps(record) + "\n" for record in wanted))

    def append_metrics(self, record: Metrics) -> None:
        with self.metrics_path.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(record) + "\n")
