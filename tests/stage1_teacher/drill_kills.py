"""Captures killed at random moments, again and again: in the end the bytes of one that was left alone (field case 29).

`python tests/stage1_teacher/drill_kills.py --kills 50` writes what was tried to manifests/records/. A kill is SIGKILL to the
capture and all its workers, or to one worker, whose shard another takes over.
"""

import argparse
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
from captures import parquet, tree, write_shard_yaml
from forks import start_command, warm_up
from tiny_teacher import text, write_teacher

from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store

LIMIT = 300


class Drill:
    """A capture of shards of four documents, never killed, and one that is."""

    def __init__(self, folder: Path, seed: int, limit: int = LIMIT) -> None:
        documents = parquet(folder, [None if i % 9 == 4 else text(1 + i % 20, i) for i in range(limit + 100)])
        sections = {"documents": {"limit": limit, "validation": {"documents": 6}}, "cache": {"codec": "clusters", "calibration_rows": 200}}
        self.yaml = write_shard_yaml(folder, write_teacher(folder / "teacher"), documents, **sections)
        self.folder, self.rng = folder, np.random.default_rng(seed)
        warm_up()
        self._finish("alone", 1)

    def run(self, kills: int, workers: int) -> Counter[str]:
        """Kill a capture by `workers` processes `kills` times, then let it end."""
        root, tried = f"killed-{workers}-{kills}", Counter()
        while sum(tried.values()) < kills:
            tried[self._kill(root, workers)] += 1
        self._finish(root, workers)
        assert tree(self.cache(root)) == tree(self.cache("alone")), f"{workers} workers, {kills} kills: bytes differ"
        assert verify(open_store(self.cache(root)), deep=True).bad == []
        return tried

    def cache(self, root: str) -> Path:
        return self.folder / root / "caches/tiny"

    def _start(self, root: str, workers: int):
        arguments = ["cache-teacher", "--shard", str(self.yaml), "--root", str(self.folder / root), "--workers", str(workers)]
        return start_command(arguments, self.folder / "stderr.txt")

    def _finish(self, root: str, workers: int) -> None:
        process = self._start(root, workers)
        process.join(600)
        assert process.exitcode == 0, (self.folder / "stderr.txt").read_text()[-2000:]

    def _kill(self, root: str, workers: int) -> str:
        """Start the capture, let it make a shard or two, and kill it; says how."""
        shutil.rmtree(self.folder / root, ignore_errors=True) if (self.cache(root) / "manifest.json").exists() else None
        before = self._shards(root)
        process = self._start(root, workers)
        wanted, deadline = before + int(self.rng.integers(0, 3)), time.monotonic() + 300
        while self._shards(root) < wanted and process.is_alive() and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(float(self.rng.uniform(0, 0.3)))
        one = workers > 1 and self.rng.random() < 0.3
        victims = _children(process.pid)[:1] if one else []
        for victim in victims or [None]:
            _signal(victim, process.pid)
        if victims:
            time.sleep(0.5)
            _signal(None, process.pid)
        process.join()
        return "one worker, then all" if victims else "all" if process.exitcode == -signal.SIGKILL else "ended before"

    def _shards(self, root: str) -> int:
        return len(list((self.cache(root) / "shards").glob("*.json")))


def _signal(victim: int | None, group: int | None) -> None:
    try:
        os.kill(victim, signal.SIGKILL) if victim else os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _children(parent: int | None) -> list[int]:
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("manifests/records/kill_drill.json"))
    a = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        drill = Drill(folder, a.seed)
        shards = len(list((drill.cache("alone") / "shards").glob("*.json")))
        tried = {f"{workers} workers": dict(sorted(drill.run(kills, workers).items())) for workers, kills in ((1, a.kills), (4, a.kills))}
        drill.run(0, 4)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    record = {"format_version": FORMAT_VERSION, "seed": a.seed, "shards": shards, "kills": tried, "bytes": "identical"}
    a.record.parent.mkdir(parents=True, exist_ok=True)
    a.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
