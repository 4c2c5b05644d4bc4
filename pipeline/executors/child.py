"""One process at one piece of work: its environment is set before it imports anything, and it ends with the one that started it."""

import multiprocessing
import os
import pickle
import signal
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Any

from pipeline.contract.errors import PipelineError
from pipeline.contract.process import end_with_parent
from pipeline.executors.base import Ended, Send

GRACE_SECONDS = 60.0
"""How long a process gets to leave by itself: a broken engine may never, and its device would stay taken."""


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

    def join(self) -> None:
        """Wait until it has left."""
        self._leave()
        self.end.close()

    def _leave(self) -> None:
        self.process.join(GRACE_SECONDS)
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
    signal.signal(signal.SIGTERM, _stop)
    os.environ |= environment
    end_with_parent()
    with suppress(KeyboardInterrupt, BrokenPipeError):  # told to end, or nobody is left to tell
        if not multiprocessing.parent_process().is_alive():  # type: ignore[union-attr]
            return  # it died before the system was asked to tell
        end.send(_outcome(work, end.send))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # nothing is in hand any more


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


def _stop(number: int, frame: Any) -> None:
    """The first SIGTERM drops what is in hand; a dying parent may send more, which would interrupt that."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt
