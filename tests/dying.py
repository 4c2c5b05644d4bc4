"""Workers that die, in the ways they do: an executor whose processes end at a shard by SIGKILL or with a broken engine."""

import os
import signal
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from pipeline.contract import process
from pipeline.executors.base import GRACE_SECONDS, Executor, Send, Work
from stage1_teacher.worker import Begun
from stage1_teacher.workers import Started


@dataclass(frozen=True)
class DeathAt:
    """What a process dies of.

    Attributes:
        folder: each death leaves a file there, so that they are counted over processes.
        at: the shard that it is about to score; None is as soon as it runs.
        how: "kill", or "engine" for what a GPU's fault raises.
        times: processes that die of it.
        seat: only there.
        elsewhere: its mark is that of a process of another machine, as its leases are.
    """

    folder: Path
    at: str | None
    how: str = "kill"
    times: int = 1
    seat: int | None = None
    elsewhere: bool = False

    def met(self, seat: int, message: Any) -> bool:
        here = isinstance(message, Started) if self.at is None else isinstance(message, Begun) and message.name == self.at
        return here and self.seat in (None, seat) and len(list(self.folder.glob("death-*"))) < self.times

    def die(self) -> None:
        (self.folder / f"death-{os.getpid()}").touch()
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'")


@dataclass
class Dying:
    """The executor, with deaths. `started` counts the processes by seat, `died` is what the caller may want of them."""

    executor: Executor
    death: DeathAt
    name: str = "dying"
    started: list[int] = field(default_factory=list)

    def start(self, seat: int, work: Work) -> None:
        self.started.append(seat)
        self.executor.start(seat, partial(_dying, work, self.death, seat))

    def receive(self) -> tuple[int, Any]:
        return self.executor.receive()

    def end(self, grace: float = GRACE_SECONDS) -> None:
        self.executor.end(grace)


def _dying(work: Work, death: DeathAt, seat: int, send: Send) -> None:
    if death.elsewhere:
        machine = f"another{os.getpid()}"  # and the one that replaces it is on a third
        process._machine = lambda: machine  # type: ignore[assignment]

    def send_and_die(message: Any) -> None:
        send(message)
        if death.met(seat, message):
            death.die()

    work(send_and_die)
