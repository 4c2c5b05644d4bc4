"""The script for a GPU is not broken where there is none: its two measured parts, tiny, on this machine's CPU."""

import os
import re
import subprocess
import sys

from runs import CHECKOUT

TINY = "--device cpu --kernels eager --tokens 64 --vocabulary 640 --k 8 --widths 32 --hidden 128 --documents 2 --length 16 --rounds 1"


def test_the_script_for_a_gpu_runs():
    paths = os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests/benchmarks")])
    command = [sys.executable, CHECKOUT / "tests/gpu/check.py", "--parts", "loss", "step", *TINY.split()]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert re.findall(r"^step: (\S+),", done.stdout, re.M) == ["pre-joint", "pre-freeze", "post-joint", "post-freeze"]
    assert len(re.findall(r"/ three products +\d", done.stdout)) == 3
