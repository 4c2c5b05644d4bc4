"""Seats on a Ray cluster: an actor each, wherever its resources are free; the only file that imports Ray.

An actor starts one process, as the local executor does, and passes its messages on. So Ctrl-C and a dead engine are what they are
locally, and the GPUs that Ray gives the actor are known before anything is imported. Ray restarts nothing: whoever listens is told that
an actor or its node is gone, and counts.
"""

import logging
import math
import os
import pickle
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from pipeline.contract.errors import PipelineError
from pipeline.executors.base import GRACE_SECONDS, Ended, Work
from pipeline.executors.child import Child
from pipeline.executors.devices import shared

ADDRESS = "RAY_ADDRESS"
PASSED_ON = ("PIPELINE_", "TRANSFORMERS_", "HF_HUB_OFFLINE", "TQDM_DISABLE")
"""Beginnings of environment variables that processes on other machines get from this one; never a password's."""

KNOCK_SECONDS = 10.0


@contextmanager
def ray_executor(resources: Mapping[str, float] | None, address: str | None) -> Iterator["RayExecutor"]:
    """Join the cluster at `address`, else the one that RAY_ADDRESS names, else start one on this machine; leave it afterwards.

    Args:
        resources: of each seat, as {"GPU": 0.5, "CPU": 4}; None is one GPU where the cluster has any, else one CPU.

    Raises:
        PipelineError: the cluster cannot be reached, or one of this machine alone has not what a seat takes.
    """
    address = address or os.environ.get(ADDRESS) or None
    _connect(address)
    try:
        there = ray.cluster_resources()
        each = dict(resources) if resources is not None else {"GPU" if there.get("GPU") else "CPU": 1.0}
        if address is None:  # a cluster that others run may grow
            require_room(each, there)
        yield RayExecutor(each)
    finally:
        ray.shutdown()


def _connect(address: str | None) -> None:
    if address and address.startswith("ray://"):
        raise PipelineError(f"--ray-address {address}: is a client's address; give HOST:PORT of the head, on a machine of the cluster")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        _knock(address)
        with _own_signals():
            ray.init(address=address or "local", include_dashboard=None if address else False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        reason = " ".join(str(error).split())[:300]
        raise PipelineError(
            f"--ray-address {address or 'local'}: no Ray cluster can be joined there ({reason}); "
            f"start one with 'ray start --head', or leave the address and {ADDRESS} out for one on this machine"
        ) from None


def _knock(address: str | None) -> None:
    """Where nobody listens, Ray would try for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = (address or "").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray takes SIGTERM for itself as it starts; the command has its own way to end."""
    ours = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)


def require_room(each: Mapping[str, float], there: Mapping[str, float]) -> None:
    """Hold what a seat takes against all that there is.

    Raises:
        PipelineError: it is more.
    """
    for name, amount in each.items():
        if there.get(name, 0.0) < amount:
            raise PipelineError(
                f"--worker-resources {name}: {amount:g} for a worker, this machine has {there.get(name, 0):g}; "
                "ask for less, or join a cluster with --ray-address HOST:PORT"
            )


@dataclass
class _Seat:
    actor: Any
    stream: Any
    heard: bool = False

    def message(self) -> Any:
        """The next one, which has come."""
        self.heard = True
        try:
            return ray.get(next(self.stream))
        except (RayError, StopIteration) as error:
            return Ended(_cause(error))


class RayExecutor:
    """Seats of equal resources. See `Executor`."""

    name = "ray"

    def __init__(self, resources: Mapping[str, float]) -> None:
        self.resources = resources
        self._seats: dict[int, _Seat] = {}

    def room(self) -> int:
        """Seats that the cluster has resources for as it is now, at least 1."""
        there = ray.cluster_resources()
        return max(1, min(int(there.get(name, 0.0) / amount + 1e-9) for name, amount in self.resources.items()))

    def taking(self, times: int) -> "RayExecutor":
        """Seats that take `times` as much each; above 1, Ray gives whole amounts only."""
        amounts = {name: amount * times for name, amount in self.resources.items()}
        return RayExecutor({name: amount if amount < 1 else math.ceil(amount) for name, amount in amounts.items()})

    def start(self, seat: int, work: Work) -> None:
        host: Any = ray.remote(_Host)
        actor = host.options(**_options(self.resources)).remote()
        environment = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
        environment |= shared(self.resources.get("GPU", 1.0))
        stream = actor.run.options(num_returns="streaming").remote(pickle.dumps(work), environment, str(Path.cwd()))
        self._seats[seat] = _Seat(actor, stream)

    def receive(self) -> tuple[int, Any]:
        seats = {seat.stream: number for number, seat in self._seats.items()}
        (ready,), _ = ray.wait(list(seats), num_returns=1)
        number = seats[ready]
        message = self._seats[number].message()
        if isinstance(message, Ended):
            ray.kill(self._seats.pop(number).actor)  # its resources are free now
        return number, message

    def end(self, grace: float = GRACE_SECONDS) -> None:
        stops = [seat.actor.stop.remote(grace) for seat in self._seats.values() if seat.heard]
        if stops:
            ray.wait(stops, num_returns=len(stops), timeout=grace)
        for seat in self._seats.values():
            ray.kill(seat.actor)
        self._seats.clear()


def _options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Of an actor: Ray never restarts it, and while it listens it can be told to stop."""
    others = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    amounts = {"num_cpus": resources.get("CPU", 0), "num_gpus": resources.get("GPU", 0), "resources": others}
    return {**amounts, "max_restarts": 0, "max_concurrency": 2}


def _cause(error: Exception) -> str:
    """What an actor died of, in Ray's words, the first sentence of it."""
    text = " ".join(str(error).split())
    return text.rpartition("The actor is dead because ")[2].partition(". ")[0][:300] or type(error).__name__


class _Host:
    """An actor with one process."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def run(self, work: bytes, environment: dict[str, str], folder: str) -> Iterator[Any]:
        """The messages of the process. It works in the folder of the command where that is here too: names mean the same then."""
        with suppress(OSError):
            os.chdir(folder)
        self._child = Child(work, environment)
        message: Any = None
        while not isinstance(message, Ended):
            message = self._child.receive()
            yield message

    def stop(self, grace: float) -> None:
        """Let the process drop what it has in hand."""
        if self._child is not None:
            self._child.stop()
            self._child.process.join(grace)
