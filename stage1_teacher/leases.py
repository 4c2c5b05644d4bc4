"""Who works on which shard: small files that save work. Nothing correct rests on them: two workers on one shard write the same.

A lease is taken over when its holder is a process of this machine that has ended, or when it has not changed for a while by this
process's own clock: holders rewrite theirs all the time. So no clock of another machine is believed, nor one that jumps.
"""

import json
import os
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.process import is_gone, process_mark
from pipeline.contract.store import Store

FOLDER = "leases"
PATIENCE = "PIPELINE_LEASE_SECONDS"
SETTLE_SECONDS = 0.25


def _patience() -> float:
    chosen = os.environ.get(PATIENCE, "60")
    try:
        seconds = float(chosen)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise PipelineError(f"{PATIENCE}={chosen}: is no number of seconds above 0; give one such as 60, the same on every machine")
    return seconds


@dataclass
class Leases:
    """The leases of one worker on one cache. `patience`: seconds that an unchanged lease of another machine is respected."""

    cache: Store
    patience: float = field(default_factory=_patience)
    _worker: str = field(default_factory=lambda: uuid.uuid4().hex)
    _held: set[str] = field(default_factory=set)
    _seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    _beat: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def take(self, unit: str) -> bool:
        """Whether the unit is this worker's now."""
        if unit in self._held:
            return True
        if not self.cache.create(_name(unit), self._data()) and not self._take_over(unit):
            return False
        self._held.add(unit)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()
        return True

    def drop(self, unit: str) -> None:
        """Give the unit free, unless another worker has taken it over meanwhile."""
        with self._lock:
            self._held.discard(unit)
            if self._is_mine(unit):
                self.cache.remove(_name(unit))

    def close(self) -> None:
        """Drop all, and end the thread that keeps them fresh."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for unit in list(self._held):
            self.drop(unit)

    def _take_over(self, unit: str) -> bool:
        try:
            found = self.cache.read_bytes(_name(unit))
        except FileNotFoundError:
            return self.cache.create(_name(unit), self._data())
        if not self._is_stale(unit, found):
            return False
        self.cache.write_bytes(_name(unit), self._data())
        time.sleep(SETTLE_SECONDS)  # others may have found it stale too: the last one to write has it
        return self._is_mine(unit)

    def _is_stale(self, unit: str, found: bytes) -> bool:
        if is_gone(_part(found, "holder")):
            return True
        content, since = self._seen.get(unit, (None, 0.0))
        if content != found:
            self._seen[unit] = (found, time.monotonic())
            return False
        return time.monotonic() - since > self.patience

    def _keep(self) -> None:
        while not self._stop.wait(self.patience / 4):
            self._beat += 1
            for unit in list(self._held):
                with suppress(PipelineError, OSError):  # the store is away: try again, or lose the lease
                    self._refresh(unit)

    def _refresh(self, unit: str) -> None:
        """A lease that is lost, since this process slept too long, stays lost."""
        with self._lock:
            if unit in self._held and self._is_mine(unit):
                self.cache.write_bytes(_name(unit), self._data())

    def _is_mine(self, unit: str) -> bool:
        try:
            return _part(self.cache.read_bytes(_name(unit)), "worker") == self._worker
        except FileNotFoundError:
            return False

    def _data(self) -> bytes:
        return json.dumps({"holder": process_mark(), "worker": self._worker, "beat": self._beat}).encode()


def sweep_leases(cache: Store) -> None:
    """Remove the leases of processes of this machine that have ended: other machines could not tell."""
    for name, holder in _holders(cache):
        if is_gone(holder):
            cache.remove(name)


def drop_leases_of(cache: Store, holder: str) -> None:
    """Remove the leases of a process that has ended, as whoever started it knows: on another machine nobody else could tell.

    Should it live after all, cut off from us, two may make one shard, and the same.
    """
    for name, found in _holders(cache):
        if found == holder:
            cache.remove(name)


def living_leases(cache: Store) -> list[str]:
    """Units that some process holds, as far as this machine can tell."""
    return [name.removeprefix(f"{FOLDER}/").removesuffix(".json") for name, holder in _holders(cache) if not is_gone(holder)]


def _holders(cache: Store) -> Iterator[tuple[str, str]]:
    """Every lease and the mark of the process that wrote it."""
    for name in cache.names(FOLDER):
        with suppress(FileNotFoundError):  # its holder has just dropped it
            yield name, _part(cache.read_bytes(name), "holder")


def require_no_worker(cache: Store) -> None:
    """Keep off a cache that is being written.

    Raises:
        CacheError: a worker may be at work.
    """
    living = living_leases(cache)
    if living:
        raise CacheError(
            f"{cache}: {living[0]} is in the hands of a worker, or of one that was lost on another machine; "
            "wait for the capture to end, or add --force if none is running"
        )


def _name(unit: str) -> str:
    return f"{FOLDER}/{unit}.json"


def _part(data: bytes, key: str) -> str:
    """A part of a lease, "" where it cannot be read."""
    try:
        return str(json.loads(data)[key])
    except (ValueError, KeyError, TypeError):
        return ""
