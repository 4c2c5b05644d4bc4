"""How a run was started: versions and machine, one entry a start; no path, no host name, no secret."""

import platform
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from stage2_student.job import StudentJob
from stage2_student.loss.row_kernels import Kernels, available_kernels

PACKAGES = ("block-stack-distillation", "torch", "transformers", "deepspeed", "pyarrow", "numpy")


def record_start(job: StudentJob, processes: int) -> None:
    """Write the run's config and add an entry to its provenance; for the one process that writes the folder."""
    job.record.write("config", job.config())
    starts = job.record.read("provenance") or []
    job.record.write("provenance", [*starts, _start(processes, job.settings.loss_kernels)])


def _start(processes: int, kernels: Kernels) -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "machine": platform.machine(),
        "processes": processes,
        "loss_kernels": available_kernels(kernels, "cuda" if torch.cuda.is_available() else "cpu"),  # others differ in last bits
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the checkout this code runs from, None in an installed wheel."""
    here = Path(__file__).parents[1]
    if not (here / ".git").exists():
        return None
    found = subprocess.run(["git", "-C", str(here), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return found.stdout.strip() or None
