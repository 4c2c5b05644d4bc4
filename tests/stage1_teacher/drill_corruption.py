"""Random damage to every file of a cache: found, named, mended to the original bytes, or refused where only a person can help.

`python tests/stage1_teacher/drill_corruption.py --corruptions 1000` writes what was tried to manifests/records/.
"""

import argparse
import json
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from captures import parquet, shard, take, tree
from tiny_teacher import write_teacher

from pipeline.contract.errors import PipelineError
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher.repair import repair

SECTIONS = {"documents": {"limit": 10, "validation": {"documents": 2}}, "cache": {"codec": "clusters", "calibration_rows": 40}}
KINDS = ("flip", "truncate", "zero", "delete", "append", "swap")
HOPELESS = ("manifest and rule", "teacher away")
"""What takes a person: nothing says what the shards hold, or a payload is lost and what it was made from too."""


@dataclass
class Tried:
    """Counts by kind of damage, of file and of outcome."""

    by_kind: Counter[str] = field(default_factory=Counter)
    by_file: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)

    def as_record(self, seed: int) -> dict:
        counts = {name: dict(sorted(getattr(self, name).items())) for name in ("by_kind", "by_file", "outcomes")}
        return {"format_version": FORMAT_VERSION, "seed": seed, "corruptions": sum(self.by_kind.values()), **counts}


class Drill:
    """A small cache, its original bytes, and a generator."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.teacher, self.away = write_teacher(folder / "teacher"), folder / "away"
        self.cache, self.rng, self.tried = folder / "tiny", np.random.default_rng(seed), Tried()
        take(shard(self.teacher, parquet(folder), **SECTIONS), self.cache)
        self.store, self.original = open_store(self.cache), tree(self.cache)

    def run(self, corruptions: int) -> Tried:
        while sum(self.tried.by_kind.values()) < corruptions:
            hopeless = self.rng.random() < 0.03
            self._hopeless(str(self.rng.choice(HOPELESS))) if hopeless else self._once(str(self.rng.choice(KINDS)))
        return self.tried

    def _once(self, kind: str) -> None:
        names = self._damage(kind)
        if not names:
            return  # zeroing zeros, swapping a file for itself
        found = {bad.file for bad in verify(self.store, deep=True).bad}
        assert set(names) <= found, f"{kind} of {names}: verify names {sorted(found)}"
        repair(self.store)
        self._require_original(f"{kind} of {names}")
        self._count(kind, names, "mended")

    def _hopeless(self, kind: str) -> None:
        payload = str(self.rng.choice([name for name in self.original if name.endswith(".arrow") and name.startswith("shards/")]))
        names = ["manifest.json", "rule.json"] if kind == "manifest and rule" else [payload]
        for name in names:
            self._change("flip", name)
        if kind == "teacher away":
            self.teacher.rename(self.away)
        assert set(names) <= {bad.file for bad in verify(self.store, deep=True).bad}
        try:
            repair(self.store)
            raise AssertionError(f"{kind}: was mended by a machine")
        except PipelineError as error:
            assert "\n" not in str(error) and len(str(error)) > 40
        if kind == "teacher away":
            self.away.rename(self.teacher)
            repair(self.store)
        else:  # a person brings them back
            for name in names:
                (self.cache / name).write_bytes(self.original[name])
        self._require_original(kind)
        self._count(kind, names, "refused with the reason")

    def _damage(self, kind: str) -> list[str]:
        if kind == "swap":
            payloads = [name for name in self.original if name.endswith(".arrow") and name.startswith("shards/")]
            one, other = (str(name) for name in self.rng.choice(payloads, 2, replace=False))
            (self.cache / one).write_bytes(self.original[other])
            (self.cache / other).write_bytes(self.original[one])
            return [one, other]
        name = str(self.rng.choice(list(self.original)))
        self._change(kind, name)
        path = self.cache / name
        return [] if path.exists() and path.read_bytes() == self.original[name] else [name]

    def _change(self, kind: str, name: str) -> None:
        path, data = self.cache / name, bytearray(self.original[name])
        at = int(self.rng.integers(len(data)))
        if kind == "delete":
            path.unlink()
            return
        if kind == "flip":
            data[at] ^= 1 << int(self.rng.integers(8))
        elif kind == "truncate":
            del data[at:]
        elif kind == "zero":
            length = min(len(data) - at, int(self.rng.integers(1, 4097)))
            data[at : at + length] = bytes(length)
        else:
            data += self.rng.bytes(int(self.rng.integers(1, 100)))
        path.write_bytes(data)

    def _require_original(self, what: str) -> None:
        now = tree(self.cache)
        assert now == self.original, (
            f"{what}: {[name for name in self.original if now.get(name) != self.original[name]]} differ after the repair"
        )

    def _count(self, kind: str, names: list[str], outcome: str) -> None:
        self.tried.by_kind[kind] += 1
        self.tried.outcomes[outcome] += 1
        for name in names:
            self.tried.by_file[_sort_of(name)] += 1


def _sort_of(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/*{Path(file).suffix}" if folder == "shards" else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corruptions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("manifests/records/corruption_drill.json"))
    a = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        record = Drill(folder, a.seed).run(a.corruptions).as_record(a.seed)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    a.record.parent.mkdir(parents=True, exist_ok=True)
    a.record.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(record))


if __name__ == "__main__":
    main()
