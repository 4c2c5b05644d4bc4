"""Captures with tiny teachers, through the library and as files of a shard manifest."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from tiny_teacher import text, write_parquet

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.overrides import merge
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.store import Store, open_store
from stage1_teacher.capture import CaptureRequest, CaptureResult, capture

MAX_LENGTH = 24
# 18 documents are left after skipping; word counts 23 and 24 fall just below and on the maximum of 24 tokens.
COUNTS: list[int | None] = [5, 1, None, 30, 23, 24, 0, 12, 3, 40, 1, 7, None, 2, 19, 25, 9, 4, 11, 6, 31]
TEXTS = [None if count is None else text(count, start) if count else " \n\t" for start, count in enumerate(COUNTS)]
SECTIONS: dict[str, Any] = {
    "documents": {"source": "parquet", "limit": 14, "validation": {"documents": 3, "every": 4}, "max_length": MAX_LENGTH},
    "targets": {"k": 8},
    "cache": {"documents_per_shard": 4, "tokens_per_batch": 64, "rows_per_chunk": 16, "threads": 1},
}
NOT_COVERED = ("logs/", "leases/")
"""Folders whose files differ from run to run."""


def settings(model: Path, files: Path | str, **sections: Any) -> dict[str, Any]:
    here = {"name": "tiny", "teacher": {"model": str(model)}, "documents": {"files": [str(files)]}}
    return merge(SECTIONS, here, sections)


def shard(model: Path, files: Path | str, **sections: Any) -> ShardManifest:
    return ShardManifest.model_validate(settings(model, files, **sections))


def take(manifest: ShardManifest, cache: Path | Store, *, split: str = "all", **options: Any) -> CaptureResult:
    splits: list[Any] = ["train", "validation"] if split == "all" else [split]
    return capture(CaptureRequest(manifest, as_store(cache), splits, **options))


def as_store(cache: Path | Store) -> Store:
    return cache if isinstance(cache, Store) else open_store(cache)


def write_shard_yaml(folder: Path, model: Path, files: Path | str, **sections: Any) -> Path:
    """A shard manifest file, to name on a command line."""
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(settings(model, files, **sections)), encoding="utf-8")
    return path


def parquet(folder: Path, texts: list[str | None] = TEXTS, name: str = "documents.parquet") -> Path:
    return write_parquet(folder / name, texts)


def tree(cache: Path | Store, under: str = "") -> dict[str, bytes]:
    """Every file that has to be byte-identical, by its name in the cache: all but logs and leases. Halves show as files."""
    store = as_store(cache)
    names = [name for name in store.names(under) if not name.startswith(NOT_COVERED)]
    halves = [path for path in store.path.rglob(".tmp-*") if path.is_file()] if store.is_local else []
    return {name: store.read_bytes(name) for name in names} | {path.name: path.read_bytes() for path in halves}


def everything(cache: Path | Store) -> list[Any]:
    """Every document of both splits, training first."""
    splits = [LogitCache.open(cache, split) for split in ("train", "validation")]
    return [split[index] for split in splits for index in range(len(split))]


@torch.inference_mode()
def reference(teacher: Path, documents: list[np.ndarray]) -> list[np.ndarray]:
    """[T-1, V] float64 log-probabilities of each document by a plain forward of transformers, alone and unpadded."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(teacher, dtype=torch.float32).eval()
    rows = [model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0, :-1] for ids in documents]
    return [part.double().log_softmax(-1).numpy() for part in rows]
