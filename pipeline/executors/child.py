"""One process at one piece of work: its environment is set before it imports anything, and it ends with the one that started it."""

import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from pipeline.contract.errors import PipelineError
from pipeline.contract.process import end_with_parent
from pipeline.executors.base import GRACE_SECONDS, Ended, Send

AGAIN_SECONDS = 0.5


class Child:
    """A process of this machine, at a pickled `Work`. It never hears Ctrl-C: the one that started it ends it."""

    def __init__(self, work: bytes, environment: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self.end, theirs = context.Pipe(duplex=False)
        # no daemon: engines and data loaders start processes too
        self.process = context.Process(target=_run, args=(theirs, dict(environment), work))
        with _deaf_to_control_c():
            self.process.start()
        theirs.close()

    def receive(self) -> Any:
        """The next message; `Ended` once the process is gone, and only then."""
        try:
            message = self.end.recv()
        except (EOFError, OSError):
            self._leave()
            return Ended(_exit(self.process.exitcode))
        if isinstance(message, Ended):
            self._leave()
        return message

    def stop(self) -> None:
        """Ask it to drop what it has in hand."""
        self.process.terminate()

    def join(self, grace: float = GRACE_SECONDS) -> None:
        """Wait until it has left."""
        self._leave(grace)
        self.end.close()

    def _leave(self, grace: float = GRACE_SECONDS) -> None:
        self.process.join(grace)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()


def _exit(code: int | None) -> str:
    return f"exit code {code}" if code else "told to end by another process"


@contextmanager
def _deaf_to_control_c() -> Iterator[None]:
    """What is started meanwhile never hears Ctrl-C: a terminal sends it to all, and workers are to be ended once."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _run(end: Connection, environment: dict[str, str], work: bytes) -> None:
    """The process: the work is unpickled, and with it all that it imports, when the devices it may see are known."""
    stop = _Stop()
    os.environ |= environment
    end_with_parent()
    with suppress(KeyboardInterrupt, BrokenPipeError):  # told to end, or nobody is left to tell
        if multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]  # else it died before the system was asked to tell
            end.send(_outcome(work, end.send))
        stop.is_over = True
    stop.close()


def _outcome(work: bytes, send: Send) -> Ended:
    try:
        pickle.loads(work)(send)
    except PipelineError as error:
        return Ended(error)
    except BrokenPipeError:
        raise
    except Exception as error:
        traceback.print_exc()
        return Ended(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return Ended()


class _Stop:
    """SIGTERM as a KeyboardInterrupt, which drops what is in hand; more of them do not disturb that.

    Raised in a `__del__`, as of a library that is being imported, it is lost, and so it is raised until it is heard.
    """

    def __init__(self) -> None:
        self.is_over = False
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, self._hear)
        sys.unraisablehook = _all_but_interrupts

    def _hear(self, number: int, frame: Any) -> None:
        if self.is_over or _is_being_handled(KeyboardInterrupt):
            return
        signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        if frame is None or frame.f_code is not _all_but_interrupts.__code__:  # there it would be lost, and printed
            raise KeyboardInterrupt

    def close(self) -> None:
        """Nothing is in hand any more."""
        self.is_over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _is_being_handled(kind: type[BaseException]) -> bool:
    error = sys.exception()
    while error is not None and not isinstance(error, kind):
        error = error.__context__
    return error is not None


def _all_but_interrupts(lost: Any) -> None:
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
