"""What processes want set with the system before they work: memory on the CPU, an end with the one that started them."""

import ctypes
import hashlib
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
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


@contextmanager
def changed_environment(changes: dict[str, str]) -> Iterator[None]:
    """Environment variables for as long as this takes."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ |= changes
    try:
        yield
    finally:
        for name, value in before.items():
            del os.environ[name]
            if value is not None:
                os.environ[name] = value


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


def is_alive(mark: str) -> bool:
    """Whether a `process_mark` is of a living process of this machine. Of other machines nothing is known: False."""
    return mark.partition("-")[0] == _machine() and not is_gone(mark)


@cache
def _machine() -> str:
    """The space in which a process has its number: host names are not unique, and containers number their own processes.

    After a restart it is another machine's: then a lease is waited for and a half is left to `gc`, as is safe.
    """
    parts = [socket.gethostname().encode()]
    with suppress(OSError):  # where there is no /proc
        parts += [Path("/proc/sys/kernel/random/boot_id").read_bytes(), os.readlink("/proc/self/ns/pid").encode()]
    return hashlib.blake2s(b" ".join(parts), digest_size=8).hexdigest()


def _started(number: int) -> str:
    """When a process started, in clock ticks since boot, "" when there is none; a number may be used again, a start not.

    A process that has ended and that its parent has not asked after yet is none.
    """
    stat = Path(f"/proc/{number}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
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
