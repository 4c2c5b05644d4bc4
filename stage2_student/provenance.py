"""How a run was started: versions and machine, one entry a start; no path, no host name, no secret."""

import platform
import subprocess
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stage2_student.job import StudentJob

PACKAGES = ("block-stack-distillation", "torch", "transformers", "deepspeed", "pyarrow", "numpy")


def record_start(job: StudentJob, processes: int) -> None:
    """Write the run's config and add an entry to its provenance; for the one process that writes the folder."""
    job.record.write("config", job.config())
    starts = job.record.read("provenance") or []
    job.record.write("provenance", [*starts, _start(processes)])


def record_shared(job: StudentJob, runs: Sequence[str]) -> None:
    """Note that the first phases are those of `runs`, one each; for the one process that writes the folder."""
    job.record.write("config", job.config())
    entries = [entry for entry in job.record.read("provenance") or [] if "shared_phases" not in entry]
    job.record.write("provenance", [*entries, {"shared_phases": list(runs)}])


def shared_phases(job: StudentJob) -> list[str]:
    """The runs that trained the first phases of `job`."""
    entries = job.record.read("provenance") or []
    return next((entry["shared_phases"] for entry in entries if "shared_phases" in entry), [])


def _start(processes: int) -> dict[str, Any]:
    return {
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "commit": _commit(),
        "machine": platform.machine(),
        "processes": processes,
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
