"""Prove a cache: what is on disk is what was written."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.index import CacheManifest, ShardRecord, read_manifest, read_sidecar, shard_name
from pipeline.contract.logit_cache.reader import LogitCache


@dataclass(frozen=True)
class Bad:
    """A part of the cache that is not what was written."""

    shard: str
    reason: str


@dataclass(frozen=True)
class Verdict:
    """What `verify` found: `bad` is empty when the cache is whole."""

    shards: int
    bad: list[Bad]

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.bad, "shards": self.shards, "bad": [asdict(part) for part in self.bad]}


def verify(cache: Path, *, deep: bool = False) -> Verdict:
    """Compare manifest, sidecars and payload sizes and footers; `deep` also hashes every file and decodes every document.

    Raises:
        CacheError: when there is no manifest to verify against.
    """
    manifest = read_manifest(cache)
    records = [shard for split in manifest.splits.values() for shard in split.shards]
    bad = [Bad("teacher", problem) for file in manifest.teacher if (problem := file.problem(cache / "teacher", deep=deep))]
    for record in records:
        problem = _sidecar_problem(cache, record) or record.payload.problem(cache / "shards", deep=deep) or _payload_problem(cache, record)
        if problem:
            bad.append(Bad(shard_name(record.split, record.index), problem))
    if deep and not bad:
        bad = _decode_problems(cache, manifest)
    return Verdict(len(records), bad)


def _sidecar_problem(cache: Path, record: ShardRecord) -> str | None:
    sidecar = read_sidecar(cache, record.split, record.index)
    if sidecar is None:
        return "the sidecar is missing or damaged"
    return None if sidecar == record else "the sidecar differs from the manifest"


def _payload_problem(cache: Path, record: ShardRecord) -> str | None:
    try:
        with pa.memory_map(str(cache / "shards" / record.payload.name)) as source, pa.ipc.open_file(source) as reader:
            if reader.num_record_batches != len(record.batch_rows):
                return f"{reader.num_record_batches} record batches, {len(record.batch_rows)} were written"
    except (pa.ArrowInvalid, OSError) as error:
        return f"the footer cannot be read ({str(error).splitlines()[0]})"
    return None


def _decode_problems(cache: Path, manifest: CacheManifest) -> list[Bad]:
    bad = []
    for split in manifest.splits:
        reader = LogitCache.open(cache, split)
        for index in range(len(reader)):
            try:
                document = reader[index]
            except CacheError as error:
                bad.append(Bad(split, str(error)))
                continue
            if len(document.counts) != document.tokens or int(document.counts.sum(dtype=int)) != len(document.ids):
                found = f"{len(document.counts)} rows and {len(document.ids)} entries"
                bad.append(Bad(split, f"document {index}: {found} do not fit its {document.tokens} tokens"))
    return bad
