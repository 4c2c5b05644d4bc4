"""What commands under an executor capture, and what of it has to be equal."""

from pathlib import Path

import yaml
from tiny_teacher import text, write_parquet, write_teacher


def write_inputs(folder: Path) -> Path:
    """A teacher, documents, and tiny.yaml that names them: 33 shards."""
    manifest = {
        "name": "tiny",
        "teacher": {"model": str(write_teacher(folder / "teacher"))},
        "documents": {
            "source": "parquet",
            "files": str(write_parquet(folder / "documents.parquet", [text(4 + i % 19, i) for i in range(90)])),
            "limit": 60,
            "validation": {"documents": 6, "every": 5},
            "max_length": 24,
        },
        "targets": {"k": 8},
        "cache": {"documents_per_shard": 2, "codec": "plain", "threads": 1},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    return folder


def payloads(root: Path) -> dict[str, bytes]:
    """All that has to be equal: what was captured and what is recorded of it, not who did it."""
    cache = root / "caches/tiny"
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file() and "logs" not in path.parts}
