"""Seats on this machine: a process each, with the devices that are dealt to it."""

import pickle
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from pipeline.executors.base import GRACE_SECONDS, Ended, Work
from pipeline.executors.child import Child


class LocalExecutor:
    """Seat n works in the n-th of the given environments, round and round. See `Executor`."""

    name = "local"

    def __init__(self, environments: Sequence[Mapping[str, str]]) -> None:
        self._environments = environments
        self._children: dict[int, Child] = {}

    def start(self, seat: int, work: Work) -> None:
        self._children[seat] = Child(pickle.dumps(work), self._environments[seat % len(self._environments)])

    def receive(self) -> tuple[int, Any]:
        seats = {id(child.end): seat for seat, child in self._children.items()}
        ready = wait([child.end for child in self._children.values()])[0]
        seat = seats[id(ready)]
        message = self._children[seat].receive()
        if isinstance(message, Ended):
            self._children.pop(seat).join()
        return seat, message

    def end(self, grace: float = GRACE_SECONDS) -> None:
        for child in self._children.values():
            child.stop()
        deadline = time.monotonic() + grace
        for child in self._children.values():
            child.join(max(0.0, deadline - time.monotonic()))
        self._children.clear()
