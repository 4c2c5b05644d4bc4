"""The index of a cache: one sidecar a shard, and the manifest of the whole, committed last.

A shard counts when its sidecar names a payload that is there with its size and hash; nothing else is believed.
"""

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from pipeline.contract.errors import CacheError
from pipeline.contract.hashing import hash_file
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.manifest.strict import Strict

Split = Literal["train", "validation"]


class FileRecord(Strict):
    """A file by its content."""

    name: str
    bytes: int
    xxh3_128: str

    @classmethod
    def of(cls, path: Path) -> "FileRecord":
        return cls(name=path.name, bytes=path.stat().st_size, xxh3_128=hash_file(path))

    def problem(self, folder: Path, *, deep: bool = True) -> str | None:
        """What is wrong with the file in `folder`, None when nothing is; `deep` reads and hashes it."""
        path = folder / self.name
        if not path.is_file():
            return f"{self.name} is missing"
        if path.stat().st_size != self.bytes:
            return f"{self.name} has {path.stat().st_size} bytes, {self.bytes} were written"
        if deep and hash_file(path) != self.xxh3_128:
            return f"{self.name} does not have the hash {self.xxh3_128} it was written with"
        return None


class Fidelity(Strict):
    """What the codec cost, over every row of a shard: KL(exact || restored) of kept ids and tail as one outcome, in nats.

    `histogram` counts rows by floor(10 log10 KL), from 1e-12 (first bin: all below) to 1.
    """

    kl_sum: float
    kl_max: float
    histogram: list[int]


class FreshForward(Strict):
    """The first documents of a split scored again, one by one and unpadded, against what was cached."""

    rows: int
    top1_equal: int
    logprob_difference_max: float


class ShardRecord(Strict):
    """The sidecar of one shard: everything known of it without opening the payload."""

    split: Split
    index: int
    payload: FileRecord
    documents: int
    tokens: int
    input_tokens: int
    entries: int
    batch_rows: list[int]
    mass_kept_sum: float
    label_logprob_sum: float
    fidelity: Fidelity
    fresh_forward: FreshForward | None
    skipped: dict[str, int]


class SplitRecord(Strict):
    """All shards of a split, in order. `limit` is the `documents.limit` it was captured under."""

    limit: int
    documents: int
    tokens: int
    input_tokens: int
    source_exhausted: bool
    skipped: dict[str, int]
    shards: list[ShardRecord]


class CacheManifest(Strict):
    """`manifest.json`: the last file written, and the first one read."""

    format_version: int
    codec: str
    shard: dict[str, Any]
    overrides: dict[str, Any]
    identity: dict[str, Any]
    fingerprint: str
    vocab_size: int
    separator_id: int
    teacher: list[FileRecord]
    splits: dict[Split, SplitRecord]


def shard_name(split: Split, index: int) -> str:
    return f"{split}-{index:05d}"


def sidecar_path(cache: Path, split: Split, index: int) -> Path:
    return cache / "shards" / f"{shard_name(split, index)}.json"


def read_sidecar(cache: Path, split: Split, index: int) -> ShardRecord | None:
    """The sidecar, None when there is none or it is not one: such a shard is redone."""
    try:
        return ShardRecord.model_validate_json(sidecar_path(cache, split, index).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def read_manifest(cache: Path) -> CacheManifest:
    """Load the manifest of a finished cache.

    Raises:
        CacheError: when there is none, it cannot be read, or its format is newer than this version knows.
    """
    path = cache / "manifest.json"
    if not path.is_file():
        raise CacheError(f"{cache}: holds no finished cache; make it with 'pipeline cache-teacher --shard {cache.name}'")
    try:
        data = json.loads(path.read_bytes())
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise CacheError(
                f"{path}: format_version {version}, this version reads {FORMAT_VERSION}; use the version of this tool that wrote it"
            )
        return CacheManifest.model_validate(data)
    except (ValueError, AttributeError) as error:
        line = str(error).splitlines()[0]
        raise CacheError(
            f"{path}: is damaged ({line}); run 'pipeline cache-teacher --shard {cache.name}' to rebuild it from the shards"
        ) from None


def merge_counts(counts: list[dict[str, int]]) -> dict[str, int]:
    """Add up counts by reason."""
    return {reason: sum(part.get(reason, 0) for part in counts) for reason in sorted({reason for part in counts for reason in part})}
