"""The manifest of a cache, made of its records alone: whoever commits it writes the same bytes."""

from collections.abc import Sequence

from pipeline.contract.errors import CacheError, DocumentError
from pipeline.contract.fingerprint import fingerprint
from pipeline.contract.logit_cache.codec import needs_vocabulary
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    CacheManifest,
    Rule,
    ShardRecord,
    Split,
    SplitRecord,
    merge_counts,
    parse_manifest,
    read_manifest,
    read_sidecar,
    shard_name,
)
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import sealed_bytes
from pipeline.contract.store import Store
from stage1_teacher.calibration import recorded_vocabulary
from stage1_teacher.teacher_folder import recorded_teacher
from stage1_teacher.worker import Dealt


def commit(cache: Store, rule: Rule, dealt: Dealt, separator_id: int) -> CacheManifest:
    """Write the manifest, unless it is there as it should be. Splits of an earlier capture stay in it.

    Raises:
        DocumentError: there is nothing to cache.
        CacheError: a record has gone meanwhile.
    """
    shard = ShardManifest.model_validate(rule.shard)
    records: dict[Split, list[ShardRecord]] = {split: _sidecars(cache, split, len(counts)) for split, counts in dealt.shards.items()}
    _require_tokens(shard, records)
    teacher = recorded_teacher(cache)
    if teacher is None:
        raise CacheError(f"{cache}: its teacher folder has gone while it was captured; run the same command again")
    last = "train" if records.get("train") else "validation"
    made = {
        split: _split_record(shards, split, shard, dealt.trailing if split == last else {}) for split, shards in records.items() if shards
    }
    manifest = CacheManifest(
        **rule.model_dump(),
        fingerprint=fingerprint(rule.identity),
        vocab_size=teacher[1],
        separator_id=separator_id,
        teacher=teacher[0],
        vocabulary=recorded_vocabulary(cache) if needs_vocabulary(rule.codec) else None,
        splits=dict(sorted((_earlier_splits(cache) | made).items())),
    )
    data = sealed_bytes(manifest.model_dump())
    if cache.size(MANIFEST) != len(data) or cache.read_bytes(MANIFEST) != data:
        cache.write_bytes(MANIFEST, data)
    return parse_manifest(data)


def _sidecars(cache: Store, split: Split, count: int) -> list[ShardRecord]:
    records = [read_sidecar(cache, split, index) for index in range(count)]
    for index, record in enumerate(records):
        if record is None:
            raise CacheError(
                f"{cache}: the record of {shard_name(split, index)} has gone while it was captured; run the same command again"
            )
    return [record for record in records if record]


def _require_tokens(shard: ShardManifest, records: dict[Split, list[ShardRecord]]) -> None:
    if not any(records.values()):
        raise DocumentError(f"documents.files={shard.documents.files}: no document is left after skipping; give files that hold text")
    if not any(record.tokens for split in records.values() for record in split):
        raise DocumentError(f"documents.files={shard.documents.files}: no document holds any token; check the tokenizer")


def _earlier_splits(cache: Store) -> dict[Split, SplitRecord]:
    """Splits captured by an earlier call stay in the manifest as they are."""
    try:
        return dict(read_manifest(cache).splits)
    except CacheError:
        return {}


def _split_record(shards: Sequence[ShardRecord], split: Split, shard: ShardManifest, trailing: dict[str, int]) -> SplitRecord:
    documents = sum(record.documents for record in shards)
    return SplitRecord(
        limit=shard.documents.limit,
        documents=documents,
        tokens=sum(record.tokens for record in shards),
        input_tokens=sum(record.input_tokens for record in shards),
        source_exhausted=split == "train" and documents < shard.documents.limit,
        skipped=merge_counts([*(record.skipped for record in shards), trailing]),
        shards=list(shards),
    )
