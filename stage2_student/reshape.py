"""A checkpoint for another number of processes, by DeepSpeed's converter: each parameter's master and moments in files of their own.

It needs the disk space of one more checkpoint while it runs, and runs apart: what it loads is not this process's memory.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.contract.atomic_io import disk_errors, temporary_path
from pipeline.contract.errors import RunError

WORKERS = 2


@contextmanager
def universal(checkpoint: Path, saved_with: int) -> Iterator[Path]:
    """The files of `checkpoint` in DeepSpeed's universal form, for as long as the body runs.

    Raises:
        RunError: they cannot be converted.
        PipelineError: the disk is full.
    """
    with temporary_path(checkpoint) as folder:
        command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
        # relative: the converter takes paths for patterns, and a run's name may hold a parenthesis
        command += ["--input_folder", f"../{checkpoint.name}/engine", "--output_folder", "engine"]
        command += ["--num_extract_workers", str(WORKERS), "--num_merge_workers", str(WORKERS)]
        folder.mkdir()
        done = subprocess.run(command, cwd=folder, env=os.environ | {"DS_ACCELERATOR": "cpu"}, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"it ended with code {done.returncode}"])[-1]
            with disk_errors(folder):
                if "No space left" in done.stderr:
                    raise OSError(28, last, str(folder))
            raise RunError(f"{checkpoint}: cannot be read by another number of processes ({last}); resume with --devices {saved_with}")
        yield folder
