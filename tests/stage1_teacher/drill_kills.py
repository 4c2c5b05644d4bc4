"""Captures killed at random moments, again and again: in the end the bytes of one that was left alone (field case 29).

`make drill` kills 50 times and writes what was tried to manifests/records/. A kill is SIGKILL to the command and all its workers,
or to one worker, whose shard the others take over.
"""

import argparse
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from captures import parquet, tree, write_shard_yaml
from drill_record import write_record
from forks import start_command
from tiny_teacher import text, write_teacher

from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store

LIMIT = 300
MOST_SECONDS, MOST_SHARDS = 0.2, 3
"""A kill comes so late at most after the start, and after so many more shards."""


class Drill:
    """A capture of shards of four documents, never killed, and others that are. `tried` counts who was killed of how many, and when."""

    def __init__(self, folder: Path, seed: int, limit: int = LIMIT) -> None:
        documents = parquet(folder, [None if i % 9 == 4 else text(1 + i % 20, i) for i in range(limit + 100)])
        sections = {"documents": {"limit": limit, "validation": {"documents": 6}}, "cache": {"codec": "clusters", "calibration_rows": 200}}
        self.yaml = write_shard_yaml(folder, write_teacher(folder / "teacher"), documents, **sections)
        self.folder, self.rng = folder, np.random.default_rng(seed)
        self.tried: Counter[tuple[str, str, str]] = Counter()
        self._end(self._start("alone", 1))
        self.original = tree(self._cache("alone"))

    def run(self, kills: int, workers: int) -> None:
        """Kill captures by `workers` processes; each ends after some kills, and has to be what it would have been without."""
        end, root = self.tried.total() + kills, f"killed-{workers}"
        while self.tried.total() < end:
            self._kill(root, workers)
            if self.tried.total() == end or (self._cache(root) / "manifest.json").exists():
                self._end(self._start(root, workers))
                self._require_original(root)

    def _kill(self, root: str, workers: int) -> None:
        """Start, wait for a random moment, kill; one worker's death the command survives, and ends as if nothing had been."""
        before, wanted, one = self._shards(root), int(self.rng.integers(MOST_SHARDS + 1)), workers > 1 and self.rng.random() < 0.5
        process = self._start(root, workers)
        while process.is_alive() and (self._shards(root) < before + wanted or (one and len(_children(process.pid)) < workers)):
            time.sleep(0.001)
        time.sleep(float(self.rng.uniform(0, MOST_SECONDS)))
        moment = "before the first shard" if self._shards(root) == 0 else "in the midst"
        victims = _children(process.pid) if one else []
        if victims:
            _kill(os.kill, int(self.rng.choice(victims)))
            self._end(process)
            self._require_original(root)
        else:
            _kill(os.killpg, process.pid)
            process.join()
        if process.exitcode == (0 if victims else -signal.SIGKILL):  # else it had just ended
            self.tried[_of(workers), "one worker" if victims else "all", moment] += 1

    def _start(self, root: str, workers: int) -> BaseProcess:
        arguments = ["cache-teacher", "--shard", str(self.yaml), "--root", str(self.folder / root), "--workers", str(workers)]
        return start_command(arguments, self.folder / "stderr.txt", fork_workers=True)

    def _end(self, process: BaseProcess) -> None:
        process.join(600)
        assert process.exitcode == 0, (self.folder / "stderr.txt").read_text()[-2000:]

    def _require_original(self, root: str) -> None:
        """All files are what they would have been; the next kill begins anew."""
        cache = self._cache(root)
        assert tree(cache) == self.original, f"{root}: {self.tried}"
        assert verify(open_store(cache), deep=True).bad == [] and open_store(cache).names("leases") == []
        shutil.rmtree(cache)

    def _cache(self, root: str) -> Path:
        return self.folder / root / "caches/tiny"

    def _shards(self, root: str) -> int:
        return len(list(self._cache(root).glob("shards/[tv]*-?????.json")))


def _of(workers: int) -> str:
    return "1 worker" if workers == 1 else f"{workers} workers"


def _kill(kill: object, number: int | None) -> None:
    try:
        kill(number, signal.SIGKILL)  # type: ignore[operator]
    except ProcessLookupError:
        return  # it has just ended


def _children(parent: int | None) -> list[int]:
    try:
        return [int(number) for number in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    except FileNotFoundError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("manifests/records/kill_drill.json"))
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    try:
        drill = Drill(folder, arguments.seed)
        for kills, workers in ((arguments.kills // 2, 1), (arguments.kills - arguments.kills // 2, 4)):
            drill.run(kills, workers)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shards = sum(name.startswith("shards/") and name.endswith(".json") for name in drill.original)
    head = {"seed": arguments.seed, "kills": drill.tried.total(), "shards": shards, "bytes": "identical"}
    write_record(arguments.record, head, drill.tried)


if __name__ == "__main__":
    main()
