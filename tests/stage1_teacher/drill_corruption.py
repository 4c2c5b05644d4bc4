"""Random damage to every file of a cache: found, named, mended to the original bytes, or refused where only a person can help.

`make drill` tries 1,000 and writes what was tried to manifests/records/. Logs and leases are not covered by `verify`, nor here.
"""

import argparse
import shutil
import tempfile
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from captures import parquet, shard, take, tree
from drill_record import write_record
from tiny_teacher import write_teacher
from transformers.utils.logging import disable_progress_bar

from pipeline.contract.errors import PipelineError
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher.repair import repair

SECTIONS = {"documents": {"limit": 10, "validation": {"documents": 2}}, "cache": {"codec": "clusters", "calibration_rows": 40}}
KINDS = ("flip", "truncate", "zero", "delete", "append")
AWAY = {"teacher": "teacher", "documents": "documents.parquet"}
NOTHING_SAYS = {"manifest.json", "rule.json"}
"""With both lost, a person has to say what the shards hold."""


class Drill:
    """A small cache, its original bytes, and a generator. `tried` counts kinds of damage, of file, and outcomes."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.cache, self.rng = folder, folder / "tiny", np.random.default_rng(seed)
        self.tried: Counter[tuple[str, str, str]] = Counter()
        take(shard(write_teacher(folder / "teacher"), parquet(folder), **SECTIONS), self.cache)
        self.store, self.original = open_store(self.cache), tree(self.cache)
        self.payloads = [name for name in self.original if name.startswith("shards/") and name.endswith(".arrow")]

    def run(self, corruptions: int) -> None:
        """One file in most cases; now and then two, two payloads swapped, or a loss that takes a person."""
        while self.tried.total() < corruptions:
            case = str(self.rng.choice(["one", "two", "swap", "both", *AWAY], p=[0.76, 0.1, 0.08, 0.02, 0.02, 0.02]))
            if case in AWAY:
                self._without(case)
            elif case == "swap":
                self._mended("swap", self._swap())
            elif case == "both":
                self._hurt(sorted(NOTHING_SAYS))
            else:
                self._hurt(self._pick(list(self.original), 2 if case == "two" else 1))

    def _hurt(self, names: list[str]) -> None:
        kinds = [str(self.rng.choice(KINDS)) for _ in names]
        hurt = {name for kind, name in zip(kinds, names, strict=True) if self._damage(kind, name)}
        kind = kinds[0] if len(names) == 1 else "two files"
        if not hurt:
            return  # zeroes were made of zeroes
        if hurt == NOTHING_SAYS:
            self._refused(kind, hurt)
            for name in hurt:  # a person brings them back
                (self.cache / name).write_bytes(self.original[name])
        else:
            self._mended(kind, hurt)

    def _without(self, what: str) -> None:
        """A payload is lost, and what it was made from is not here; then it is."""
        names = set(self._pick(self.payloads, 1))
        for name in names:
            self._damage("flip", name)
        with self._away(self.folder / AWAY[what]):
            self._refused(f"flip, {what} away", names)
        repair(self.store)
        self._require_original(f"flip of {names} without {what}")

    def _mended(self, kind: str, hurt: set[str]) -> None:
        self._require_found(kind, hurt)
        repair(self.store)
        self._require_original(f"{kind} of {sorted(hurt)}")
        self._count(kind, hurt, "found and mended")

    def _refused(self, kind: str, hurt: set[str]) -> None:
        self._require_found(kind, hurt)
        try:
            repair(self.store)
        except PipelineError as error:
            assert "\n" not in str(error) and str(self.cache) in str(error)
        else:
            raise AssertionError(f"{kind} of {sorted(hurt)}: was mended by a machine")
        self._count(kind, hurt, "found and refused")

    def _damage(self, kind: str, name: str) -> bool:
        """Whether the file is another then."""
        path, data = self.cache / name, bytearray(self.original[name])
        at = int(self.rng.integers(len(data)))
        if kind == "delete":
            path.unlink()
            return True
        if kind == "flip":
            data[at] ^= 1 << int(self.rng.integers(8))
        elif kind == "truncate":
            del data[at:]
        elif kind == "zero":
            end = min(len(data), at + int(self.rng.integers(1, 4097)))
            data[at:end] = bytes(end - at)
        else:
            data += self.rng.bytes(int(self.rng.integers(1, 100)))
        path.write_bytes(data)
        return data != self.original[name]

    def _swap(self) -> set[str]:
        one, other = self._pick(self.payloads, 2)
        (self.cache / one).write_bytes(self.original[other])
        (self.cache / other).write_bytes(self.original[one])
        return {one, other}

    def _pick(self, names: list[str], count: int) -> list[str]:
        return [str(name) for name in self.rng.choice(names, count, replace=False)]

    @contextmanager
    def _away(self, path: Path) -> Any:
        path.rename(path.with_name("away"))
        yield
        path.with_name("away").rename(path)

    def _require_found(self, kind: str, hurt: set[str]) -> None:
        """`verify` names what is hurt, and nothing else."""
        found = {bad.file for bad in verify(self.store, deep=True).bad}
        without_manifest = "manifest.json" in hurt and len(hurt) > 1
        assert found == hurt or (without_manifest and hurt <= found), f"{kind} of {sorted(hurt)}: verify names {sorted(found)}"

    def _require_original(self, what: str) -> None:
        now = tree(self.cache)
        differ = [name for name in {*now, *self.original} if now.get(name) != self.original.get(name)]
        assert not differ, f"{what}: {differ} differ after the repair"

    def _count(self, kind: str, hurt: set[str], outcome: str) -> None:
        self.tried[kind, " and ".join(sorted(map(_sort_of, hurt))), outcome] += 1


def _sort_of(name: str) -> str:
    return f"shards/*{Path(name).suffix}" if name.startswith("shards/") else name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--corruptions", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("manifests/records/corruption_drill.json"))
    arguments = parser.parse_args()
    disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="drill-"))
    try:
        drill = Drill(folder, arguments.seed)
        drill.run(arguments.corruptions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    covered = sorted(set(map(_sort_of, drill.original)))
    write_record(arguments.record, {"seed": arguments.seed, "corruptions": drill.tried.total(), "files": covered}, drill.tried)


if __name__ == "__main__":
    main()
