"""Find a manifest by name or path: a path, ./manifests, $PIPELINE_HOME/manifests, then the shipped copies."""

import os
from pathlib import Path
from typing import Any

import yaml

from pipeline.contract.errors import ManifestError
from pipeline.contract.manifest.experiment import ExperimentManifest
from pipeline.contract.manifest.overrides import merge, nested
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.manifest.strict import parse
from pipeline.contract.manifest.student import StudentManifest


def shipped_folder() -> Path:
    """The manifests of this distribution: inside the wheel, or beside the packages in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "_manifests"
    return inside if inside.is_dir() else package.parent / "manifests"


def search_path(kind: str) -> list[Path]:
    """Folders searched for manifests of `kind` ('shards' or 'experiments'), first match wins."""
    homes = [Path("manifests")]
    if os.environ.get("PIPELINE_HOME"):
        homes.append(Path(os.environ["PIPELINE_HOME"]) / "manifests")
    return [home / kind for home in [*homes, shipped_folder()]]


def names(kind: str) -> dict[str, Path]:
    """Every manifest of `kind` that can be named, with the file that the name finds."""
    found: dict[str, Path] = {}
    for folder in search_path(kind):
        for path in sorted(folder.glob("*.yaml")):
            found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> Path:
    """Resolve a name or a path to a manifest file.

    Raises:
        ManifestError: when nothing has that name; the message lists the names that exist.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        if not Path(name).is_file():
            raise ManifestError(f"{name}: no such manifest file; give a path to a YAML file or one of {', '.join(names(kind))}")
        return Path(name)
    path = names(kind).get(name)
    if path is None:
        raise ManifestError(
            f"{name!r}: no {kind} manifest has that name; known are {', '.join(names(kind)) or 'none'}, or give a path to a YAML file"
        )
    return path


def _load(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ManifestError(f"{path}: is not YAML ({str(error).splitlines()[0]}); mend it or give another path") from None


def load_shard(name: str, overrides: dict[str, Any] | None = None) -> ShardManifest:
    """Load a shard manifest with dotted `overrides` applied.

    Raises:
        ManifestError: unknown name, unknown key, or a value out of its rule.
    """
    path = find("shards", name)
    data = _load(path)
    return parse(ShardManifest, merge(data, nested(overrides or {})) if isinstance(data, dict) else data, str(path))


def load_experiment(name: str) -> ExperimentManifest:
    """Load an experiment manifest.

    Raises:
        ManifestError: unknown name, unknown key, or a value out of its rule.
    """
    path = find("experiments", name)
    return parse(ExperimentManifest, _load(path), str(path))


def student_settings(shard: ShardManifest, *layers: dict[str, Any], source: str) -> StudentManifest:
    """The paper's defaults, then the shard's `student` section, then `layers` in order (nested mappings).

    Raises:
        ManifestError: naming `source` when a layer does not fit.
    """
    return parse(StudentManifest, merge(shard.student, *layers), source).for_targets(shard.targets)
