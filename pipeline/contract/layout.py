"""Where artifacts live under the root: `--root`, else $PIPELINE_HOME, else ./artifacts."""

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.errors import NotThereYet
from pipeline.contract.run_record import RunFolder


@dataclass(frozen=True)
class ArtifactRoot:
    """Folders of caches, runs and reports."""

    path: Path

    @classmethod
    def resolve(cls, root: str | None) -> "ArtifactRoot":
        """Choose the root.

        Raises:
            NotThereYet: a URL.
        """
        chosen = root or os.environ.get("PIPELINE_HOME") or "artifacts"
        if "://" in chosen:
            raise NotThereYet(f"--root {chosen}: this version keeps artifacts in local folders; give a path")
        return cls(Path(chosen))

    def cache(self, shard: str) -> Path:
        return self.path / "caches" / shard

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.path / "runs" / name)

    def report(self, name: str) -> Path:
        return self.path / "reports" / name
