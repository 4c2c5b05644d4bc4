"""Who works on which shard: small files that save work. Nothing correct rests on them: two workers on one shard write the same.

A lease is taken over when its holder is a process of this machine that has ended, or when it has not changed for a while by this
process's own clock: holders rewrite theirs all the time. So no clock of another machine is believed, nor one that jumps.
"""

import json
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from pipeline.contract.errors import PipelineError
from pipeline.contract.process import is_gone, process_mark
from pipeline.contract.store import Store

FOLDER = "leases"
PATIENCE = "PIPELINE_LEASE_SECONDS"


def _patience() -> float:
    return float(os.environ.get(PATIENCE, "60"))


@dataclass
class Leases:
    """The leases of one worker on one cache. `patience`: seconds that an unchanged lease of another machine is respected."""

    cache: Store
    patience: float = field(default_factory=_patience)
    _held: set[str] = field(default_factory=set)
    _seen: dict[str, tuple[bytes, float]] = field(default_factory=dict)
    _beat: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def take(self, unit: str) -> bool:
        """Whether the unit is this worker's now."""
        name = _name(unit)
        if not self.cache.create(name, self._data()) and not self._take_over(name):
            return False
        self._held.add(unit)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()
        return True

    def drop(self, unit: str) -> None:
        """Give the unit free."""
        self._held.discard(unit)
        self.cache.remove(_name(unit))

    def close(self) -> None:
        """Drop all, and end the thread that keeps them fresh."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        for unit in list(self._held):
            self.drop(unit)

    def _take_over(self, name: str) -> bool:
        try:
            found = self.cache.read_bytes(name)
        except FileNotFoundError:
            return self.cache.create(name, self._data())
        if not self._is_stale(name, found):
            return False
        mine = self._data()
        self.cache.write_bytes(name, mine)
        return self.cache.read_bytes(name) == mine

    def _is_stale(self, name: str, found: bytes) -> bool:
        if is_gone(_holder(found)):
            return True
        content, since = self._seen.get(name, (b"", 0.0))
        if content != found:
            self._seen[name] = (found, time.monotonic())
            return False
        return time.monotonic() - since > self.patience

    def _keep(self) -> None:
        while not self._stop.wait(self.patience / 4):
            self._beat += 1
            for unit in list(self._held):
                with suppress(PipelineError, OSError):  # the store is away: try again, or lose the lease
                    self._refresh(unit)

    def _refresh(self, unit: str) -> None:
        self.cache.write_bytes(_name(unit), self._data())
        if unit not in self._held:  # dropped meanwhile
            self.cache.remove(_name(unit))

    def _data(self) -> bytes:
        return json.dumps({"holder": process_mark(), "beat": self._beat}).encode()


def living_leases(cache: Store) -> list[str]:
    """Units that some process holds, as far as this machine can tell."""
    units = []
    for name in cache.names(FOLDER):
        try:
            data = cache.read_bytes(name)
        except FileNotFoundError:
            continue
        if not is_gone(_holder(data)):
            units.append(name.removeprefix(f"{FOLDER}/").removesuffix(".json"))
    return units


def _name(unit: str) -> str:
    return f"{FOLDER}/{unit}.json"


def _holder(data: bytes) -> str:
    try:
        return str(json.loads(data)["holder"])
    except (ValueError, KeyError, TypeError):
        return ""
