"""Where artifacts live under the root: `--root`, else $PIPELINE_HOME, else ./artifacts.

Caches may live behind a URL. Runs, reports and trained teachers are on a local disk always: with a URL as root they are in ./artifacts.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.run_record import RunFolder
from pipeline.contract.store import Store, open_store

TEACHERS, MODEL = "teachers", "model"


@dataclass(frozen=True)
class ArtifactRoot:
    """Folders of caches, runs, reports and trained teachers."""

    path: Path
    location: str

    @classmethod
    def resolve(cls, root: str | None) -> "ArtifactRoot":
        """Choose the root."""
        chosen = root or os.environ.get("PIPELINE_HOME") or "artifacts"
        return cls(Path("artifacts" if "://" in chosen else chosen), chosen)

    def absolute(self) -> "ArtifactRoot":
        """The same, for processes that work in other folders."""
        return self if "://" in self.location else ArtifactRoot(self.path.absolute(), str(self.path.absolute()))

    @property
    def caches(self) -> Store:
        return open_store(self.location) / "caches"

    def cache(self, shard: str) -> Store:
        return self.caches / shard

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.path / "runs" / name)

    def report(self, name: str) -> Path:
        return self.path / "reports" / name

    def teacher(self, shard: str) -> RunFolder:
        """Where a teacher is trained on a shard's documents."""
        return RunFolder(self.path / TEACHERS / shard)


def trained_model(teacher: RunFolder) -> Path:
    """The Hugging Face folder of a trained teacher, there once the training is finished."""
    return teacher.path / MODEL


def trained_on(model: Path) -> tuple[str, str] | None:
    """Root and shard of the trained teacher that has, or would have, its model here; None where none would."""
    if model.name != MODEL or model.parent.parent.name != TEACHERS:
        return None
    return str(model.parents[2]), model.parent.name
