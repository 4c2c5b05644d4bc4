"""What processes want set with the system before they work: memory on the CPU, an end with the one that started them."""

import ctypes
import hashlib
import os
import signal
import socket
import sys
from pathlib import Path

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


def process_mark() -> str:
    """A name of this process that no other has: machine, number and time of start."""
    return f"{_machine()}-{os.getpid()}-{_started(os.getpid())}"


def is_gone(mark: str) -> bool:
    """Whether a `process_mark` is of a process of this machine that has ended. Of other machines nothing is known: False."""
    machine, _, rest = mark.partition("-")
    number, _, started = rest.partition("-")
    return machine == _machine() and number.isdigit() and _started(int(number)) != started


def _machine() -> str:
    return hashlib.blake2s(socket.gethostname().encode(), digest_size=4).hexdigest()


def _started(number: int) -> str:
    """When a process started, in clock ticks since boot, "" when there is none; a number may be used again, a start not."""
    stat = Path(f"/proc/{number}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[19]
    except OSError:
        return "" if stat.parent.parent.joinpath("self").exists() or not _is_alive(number) else "alive"


def _is_alive(number: int) -> bool:
    """Where there is no /proc."""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
