"""How a run was started and how that ended: versions and machine, one entry a start; no host name, no secret."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from pipeline.contract.environment import start_record
from pipeline.contract.errors import Interrupted, PipelineError
from pipeline.contract.process import process_mark
from stage2_student.engine import Processes
from stage2_student.job import StudentJob
from stage2_student.loss.row_kernels import RAN, Kernels, available_kernels

PACKAGES = ("block-stack-distillation", "torch", "transformers", "deepspeed", "pyarrow", "numpy")


@contextmanager
def recorded_start(job: StudentJob, processes: Processes, resumed_from: int) -> Iterator[None]:
    """Write the run's config, an entry for this start, and in the end how it ended; the first process does."""
    if processes.rank != 0:
        yield
        return
    job.record.write("config", job.config())
    starts = job.record.read("provenance") or []
    for start in starts:
        start.setdefault("ended", "killed")  # it could not write it down itself
    job.record.write("provenance", [*starts, _start(processes.world_size, resumed_from, job.settings.loss_kernels)])
    RAN.clear()
    try:
        yield
    except Exception as error:
        record_end(job, _reason(error), stopped=isinstance(error, Interrupted), kernels_ran=RAN)
        raise
    record_end(job, "finished", kernels_ran=RAN)


def record_end(job: StudentJob, reason: str, *, stopped: bool = False, kernels_ran: Collection[str] = ()) -> None:
    """Note how the last start ended, and whether by a signal; where even that cannot be written, the next start calls it killed.

    `kernels_ran` is for the process that trained; who started it knows of none.
    """
    with suppress(OSError, PipelineError):
        starts = job.record.read("provenance") or [{}]
        starts[-1] |= {"ended": reason, "stopped": stopped} | ({"loss_kernels_ran": sorted(kernels_ran)} if kernels_ran else {})
        job.record.write("provenance", starts)


def _reason(error: Exception) -> str:
    line = (str(error).splitlines() or [""])[0]
    return line if isinstance(error, PipelineError) else f"{type(error).__name__}: {line}"


def _start(processes: int, resumed_from: int, kernels: Kernels) -> dict[str, Any]:
    return {
        **start_record(PACKAGES),
        "resumed_from": resumed_from,
        "process": process_mark(),  # by which others on this machine see that it has died
        "processes": processes,
        "loss_kernels": available_kernels(kernels, "cuda" if torch.cuda.is_available() else "cpu"),  # others differ in last bits
    }
