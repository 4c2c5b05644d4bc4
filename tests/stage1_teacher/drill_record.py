"""What a drill tried, as a record that is the same for the same seed and versions."""

import json
import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.contract.logit_cache.schema import FORMAT_VERSION

PACKAGES = ("numpy", "numba", "pyarrow", "tokenizers", "torch", "transformers", "xxhash", "zstandard")


def write_record(path: Path, head: dict[str, Any], tried: Counter[tuple[str, ...]]) -> None:
    """`head`, then counts nested by the parts of their keys, then the versions it ran with."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in PACKAGES}
    record = {"format_version": FORMAT_VERSION, **head, "tried": _nested(tried), "versions": versions}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(path)


def _nested(tried: Counter[tuple[str, ...]]) -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for key, count in sorted(tried.items()):
        level = counts
        for part in key[:-1]:
            level = level.setdefault(part, {})
        level[key[-1]] = count
    return counts
