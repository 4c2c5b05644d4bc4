"""A run's metrics.jsonl shown elsewhere: TensorBoard beside the run, offline; wandb and trackio where they are installed.

Trackers hold copies. Whatever happens to one, the run and its metrics.jsonl go on.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from pipeline.contract.errors import RunError
from pipeline.contract.run_record import Metrics, RunFolder

TrackerName = Literal["tensorboard", "wandb", "trackio"]
Log = Callable[[dict[str, float], int], None]
"""Takes the values of one record, and the optimizer steps done by then."""

POLL_SECONDS = 5.0


class TensorBoard:
    """Event files in `tensorboard/` of a run's folder, a call a record as it is written to metrics.jsonl.

    A run that is new to TensorBoard is told whole; a resumed one takes back what it does again.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder, self._place, self._broken = folder, folder.path / "tensorboard", False
        self._log: Log | None = None

    def __call__(self, record: Metrics) -> None:
        if self._broken:
            return
        try:
            self._write(record)
        except Exception as error:  # of a copy: the run does not depend on it
            self._broken = True
            print(f"note: TensorBoard is told no more ({' '.join(str(error).split())[:200]})", file=sys.stderr, flush=True)

    def _write(self, record: Metrics) -> None:
        if self._log is None:
            known = self._place.is_dir()
            self._log = tensorboard_log(self._place, purge_from=record["step"] if known else None)
            if not known:
                for earlier in self._folder.metrics():
                    self._log(scalars(earlier), earlier["step"])
                return
        self._log(scalars(record), record["step"])


def scalars(record: Metrics) -> dict[str, float]:
    """The finite and other numbers of a record by their slash-separated names; whether something happened counts as 0 or 1."""
    return {key: float(value) for key, value in record.items() if "/" in key and isinstance(value, bool | int | float)}


def tensorboard_log(folder: Path, purge_from: int | None = None) -> Log:
    """Write scalars into event files, on disk when the call returns."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(str(folder), purge_step=purge_from)

    def log(values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return log


def wandb_log(folder: Path, run: str, config: dict[str, Any]) -> Log:
    """A run of Weights & Biases, offline unless WANDB_MODE says otherwise."""
    import wandb

    mode = os.environ.get("WANDB_MODE", "offline")
    run_id = run.replace("/", "-")
    opened = wandb.init(project=run.partition("/")[0], name=run, id=run_id, resume="allow", dir=str(folder), config=config, mode=mode)
    opened.define_metric("*", step_metric="optimizer_step")
    return lambda values, step: opened.log({**values, "optimizer_step": step})


def trackio_log(run: str, config: dict[str, Any]) -> Log:
    """A new run of trackio's, in its own folder of this machine ($TRACKIO_DIR); a run that is sent again is one more there."""
    import trackio

    opened = trackio.init(project=run.partition("/")[0], name=run, config=config, auto_log_cpu=False, auto_log_gpu=False)
    return lambda values, step: opened.log(values, step=step)


def export(folder: RunFolder, to: TrackerName, *, follow: bool = False) -> int:
    """Send every record of a run to a tracker, and with `follow` those still to come until it is finished; returns how many.

    Raises:
        RunError: the tracker is not installed.
    """
    if find_spec(to) is None:
        raise RunError(f"--to {to}: {to} is not installed; pip install {to}")
    config = folder.read("config") or {}
    run = str(config.get("run", folder.path.name))
    logs: dict[str, Callable[[], Log]] = {
        "tensorboard": lambda: tensorboard_log(folder.path / "tensorboard", purge_from=0),
        "wandb": lambda: wandb_log(folder.path, run, config),
        "trackio": lambda: trackio_log(run, config),
    }
    log = logs[to]()
    sent = 0
    for record in _records(folder, follow):
        log(scalars(record), record["step"])
        sent += 1
    return sent


def _records(folder: RunFolder, follow: bool) -> Iterator[Metrics]:
    """Each record once, by its place in training: a resumed run writes some of them again."""
    seen: set[tuple[Any, ...]] = set()
    while True:
        finished = folder.read("result") is not None
        for record in folder.metrics():
            place = (record["kind"], record["phase"], record["phase_step"], record.get("event"))
            if place not in seen:
                seen.add(place)
                yield record
        if finished or not follow:
            return
        time.sleep(POLL_SECONDS)
