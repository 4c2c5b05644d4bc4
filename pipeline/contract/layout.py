"""Where artifacts live under the root: `--root`, else $PIPELINE_HOME, else ./artifacts."""

import os
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.run_record import RunFolder


@dataclass(frozen=True)
class ArtifactRoot:
    """Folders of caches, runs and reports."""

    path: Path

    @classmethod
    def resolve(cls, root: str | None) -> "ArtifactRoot":
        return cls(Path(root or os.environ.get("PIPELINE_HOME") or "artifacts"))

    def cache(self, shard: str) -> Path:
        return self.path / "caches" / shard

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.path / "runs" / name)

    def report(self, name: str) -> Path:
        return self.path / "reports" / name
