"""Start a run's processes: this one, those of a launcher that has started us already, or one a device by torchrun."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pipeline.contract.errors import Interrupted, RunError
from stage2_student.job import StudentJob
from stage2_student.train import OnRecord, train


def launched_by_another() -> bool:
    """Whether torchrun, deepspeed or srun started this process."""
    return "RANK" in os.environ or _under_slurm()


def _under_slurm() -> bool:
    return "SLURM_STEP_ID" in os.environ and "MASTER_ADDR" in os.environ


def rank() -> int:
    """This process's rank in its run, before anything distributed is set up."""
    if "RANK" in os.environ:
        return int(os.environ["RANK"])
    return int(os.environ["SLURM_PROCID"]) if _under_slurm() else 0


def in_process(job: StudentJob, on_record: OnRecord) -> dict[str, Any] | None:
    """Run `job` in this process, as one of those a launcher started or alone; the result on rank 0, None elsewhere."""
    first = rank() == 0
    result = train(job, on_record)
    return result if first else None


def launch(job: StudentJob, devices: int) -> dict[str, Any]:
    """Run `job` on `devices` processes of this machine, started here; returns its result.

    Raises:
        RunError: a process failed; the last line of its error is in the message.
        Interrupted: a signal came.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        job.write(path)
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={devices}",
            "-m",
            "stage2_student.worker",
            str(path),
        ]
        threads = str(max(1, (os.cpu_count() or 1) // devices))
        process = subprocess.Popen(command, env={"OMP_NUM_THREADS": threads, **os.environ}, stdout=sys.stderr)
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait()
            raise Interrupted(f"{job.run}: stopped by a signal; run the same command again to go on") from None
    result = job.record.read("result")
    if code or result is None:
        raise RunError(f"{job.run}: a process ended with code {code}; its error stands above, and the same command resumes")
    return result
