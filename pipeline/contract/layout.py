"""Where artifacts live under the root: `--root`, else $PIPELINE_HOME, else ./artifacts.

Caches may live behind a URL. Runs and reports are on a local disk always: with a URL as root they are in ./artifacts.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.run_record import RunFolder
from pipeline.contract.store import Store, open_store


@dataclass(frozen=True)
class ArtifactRoot:
    """Folders of caches, runs and reports."""

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
