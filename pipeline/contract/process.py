"""What processes want set with the system before they work: memory on the CPU, an end with the one that started them."""

import ctypes
import os
import signal
import sys

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def prepare_cpu_process() -> None:
    """Name the device to DeepSpeed, which transformers may import, and keep freed memory. Call it before either loads."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    _keep_freed_memory()


def _keep_freed_memory() -> None:
    """Reuse large blocks rather than unmap them: a step would fault hundreds of megabytes in anew. glibc only."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def end_with_parent() -> None:
    """Ask for SIGTERM when the process that started this one dies, however it dies. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
