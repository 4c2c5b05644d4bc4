"""Start a run's processes: this one, those of a launcher that has started us already, or one a device of this machine."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.contract.errors import Interrupted, RunError
from pipeline.contract.run_record import Metrics
from pipeline.executors.devices import share_of_cores
from stage2_student.engine import under_slurm
from stage2_student.job import StudentJob
from stage2_student.progress import StepProgress
from stage2_student.provenance import record_end
from stage2_student.trackers import TensorBoard
from stage2_student.train import train

GRACE_SECONDS = 30.0
"""How long the others get to end by themselves once one process has failed; a collective may never return."""


def launched_by_another() -> bool:
    """Whether torchrun, deepspeed or srun started this process."""
    return "RANK" in os.environ or under_slurm()


def rank() -> int:
    """This process's rank in its run, before anything distributed is set up."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    return int(os.environ["SLURM_PROCID"]) if under_slurm() else 0


def in_process(job: StudentJob) -> dict[str, Any] | None:
    """Run `job` in this process, as one of those a launcher started or alone; the result on rank 0, None elsewhere."""
    first = rank() == 0
    result = train(job, watchers(job))
    return result if first else None


def watchers(job: StudentJob) -> Callable[[Metrics], None]:
    """What hears of each record beside metrics.jsonl: the terminal, and TensorBoard's files."""
    heard: list[Callable[[Metrics], None]] = [StepProgress(job)]
    if job.settings.tensorboard:
        heard.append(TensorBoard(job.record))

    def tell(record: Metrics) -> None:
        for hear in heard:
            hear(record)

    return tell


def launch(job: StudentJob, devices: int) -> dict[str, Any]:
    """Run `job` on `devices` new processes of this machine; returns its result.

    Raises:
        RunError: a process failed; its own error is in the message.
        Interrupted: a signal came; the processes have saved their state.
    """
    with tempfile.TemporaryDirectory() as folder:
        job.write(Path(folder) / "job.json")
        processes = _start(Path(folder), devices)
        try:
            codes = _wait(processes)
        except KeyboardInterrupt:
            for process in processes:
                process.terminate()
            _wait(processes)
            raise Interrupted(f"{job.run}: stopped by a signal; run the same command again to go on") from None
        errors = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("error-*.txt"))]
    result = job.record.read("result")
    if not any(codes) and result is not None:
        return result
    died = [f"process {rank} died of {signal.Signals(-code).name}" for rank, code in enumerate(codes) if code < 0]
    if not errors and not died:  # not the user's to mend
        raise RuntimeError(f"{job.run}: a process failed; its traceback stands above")
    if not errors:  # what the others say is that they lost it
        errors = [f"{job.run}: {died[0]} (SIGKILL is often a machine out of memory); run the same command again to resume"]
    record_end(job, errors[0])
    raise RunError(errors[0])


def _start(folder: Path, devices: int) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(devices)}
    command = [sys.executable, "-m", "stage2_student.worker", str(folder)]
    places = [{"RANK": str(index), "LOCAL_RANK": str(index)} for index in range(devices)]
    # a session of their own: Ctrl-C reaches this process alone, which passes it on once
    environment = dict(os.environ) | share_of_cores(devices) | meeting
    return [subprocess.Popen(command, env=environment | place, stdout=sys.stderr, start_new_session=True) for place in places]


def _wait(processes: list[subprocess.Popen[bytes]]) -> list[int]:
    """Wait for all; once one has failed, end the others after a grace. Their codes, 0 for one that was ended here."""
    deadline, ended = float("inf"), set()
    while any(process.poll() is None for process in processes):
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + GRACE_SECONDS
        if time.monotonic() > deadline:
            ended |= {process.pid for process in processes if process.poll() is None}
            for process in processes:
                process.send_signal(signal.SIGKILL)
        time.sleep(0.1)
    return [0 if process.pid in ended else process.returncode for process in processes]
