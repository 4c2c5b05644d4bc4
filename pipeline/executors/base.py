"""Run pieces of work in processes of their own, on this machine or many: what both stages ask of an executor.

A seat is a place for one process. Its work sends messages as it goes; the last that comes from a seat is `Ended`, whatever happens to
its process, engine or machine. Whether to start the work again is the caller's to say: an executor never repeats anything by itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from pipeline.contract.errors import PipelineError

ATTEMPTS = 3
"""Processes that may die at one piece of work before it is given up: a fault of the machine moves on, one of the work comes back."""

GRACE_SECONDS = 60.0
"""How long a process that is told to end gets to leave by itself: a broken engine may never, and its device would stay taken."""

Send = Callable[[Any], None]

Work = Callable[[Send], None]
"""To be pickled and called in another process. Raises a PipelineError for what is the user's to mend."""


@dataclass(frozen=True)
class Ended:
    """A seat is empty. `problem` is None when its work was done, the error that it raised, or words for what its process died of."""

    problem: PipelineError | str | None = None


class Executor(Protocol):
    """Seats that are numbered by the caller; a new executor implements these and nothing else changes."""

    name: str
    """As `--executor` names it."""

    def start(self, seat: int, work: Work) -> None:
        """Put a process to work in an empty seat; returns at once."""
        ...

    def receive(self) -> tuple[int, Any]:
        """Wait for the next message of any seat: which one, and what it sent. A seat's messages keep their order."""
        ...

    def end(self, grace: float = GRACE_SECONDS) -> None:
        """Tell all that still work to end, and wait until they have, for `grace` seconds at most; seats are empty afterwards."""
        ...
