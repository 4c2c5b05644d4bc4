"""The manifest of a cache, made of its records: whoever commits it writes the same bytes."""

from collections.abc import Sequence

from pipeline.contract.errors import CacheError, DocumentError
from pipeline.contract.logit_cache.codec import needs_vocabulary
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    CacheManifest,
    MadeBy,
    Rule,
    ShardRecord,
    Split,
    SplitRecord,
    find_manifest,
    merge_counts,
    parse_manifest,
    read_sidecar,
    shard_name,
)
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import sealed_bytes
from pipeline.contract.store import Store
from stage1_teacher.calibration import recorded_vocabulary
from stage1_teacher.teacher_folder import recorded_teacher
from stage1_teacher.worker import Dealt, made_by


def commit(cache: Store, rule: Rule, dealt: Dealt, separator_id: int) -> CacheManifest:
    """Write the manifest, unless it is there as it should be. Splits of an earlier capture stay in it, and so does a larger range.

    Raises:
        DocumentError: there is nothing to cache.
        CacheError: a record has gone or changed meanwhile.
    """
    shard = ShardManifest.model_validate(rule.shard)
    origin = made_by(cache, rule)
    records = {split: _sidecars(cache, split, counts, origin) for split, counts in dealt.shards.items()}
    _require_tokens(shard, records)
    teacher = recorded_teacher(cache)
    if teacher is None:
        raise CacheError(f"{cache}: its teacher folder has gone while it was captured; run the same command again")
    earlier = find_manifest(cache)
    if earlier and any(split in earlier.splits and earlier.splits[split].limit > shard.documents.limit for split in records):
        return earlier  # another command has committed it meanwhile
    made = {split: _split_record(shards, split, shard, dealt.trailing) for split, shards in records.items() if shards}
    manifest = CacheManifest(
        **rule.model_dump(),
        fingerprint=origin.fingerprint,
        vocab_size=teacher[1],
        separator_id=separator_id,
        teacher=teacher[0],
        vocabulary=recorded_vocabulary(cache) if needs_vocabulary(rule.codec) else None,
        splits=dict(sorted((_earlier_splits(earlier, shard) | made).items())),
    )
    data = sealed_bytes(manifest.model_dump())
    if cache.size(MANIFEST) != len(data) or cache.read_bytes(MANIFEST) != data:
        cache.write_bytes(MANIFEST, data)
    return parse_manifest(data)


def _sidecars(cache: Store, split: Split, counts: Sequence[int], origin: MadeBy) -> list[ShardRecord]:
    records = []
    for index, documents in enumerate(counts):
        record = read_sidecar(cache, split, index)
        if record is None or (record.documents, record.made_by) != (documents, origin):
            raise CacheError(
                f"{cache}: the record of {shard_name(split, index)} has gone or changed while it was captured, as by another command "
                "with other settings; run the same command again"
            )
        records.append(record)
    return records


def _require_tokens(shard: ShardManifest, records: dict[Split, list[ShardRecord]]) -> None:
    if not any(records.values()):
        raise DocumentError(f"documents.files={shard.documents.files}: no document is left after skipping; give files that hold text")
    if not any(record.tokens for split in records.values() for record in split):
        raise DocumentError(f"documents.files={shard.documents.files}: no document holds any token; check the tokenizer")


def _earlier_splits(earlier: CacheManifest | None, shard: ShardManifest) -> dict[Split, SplitRecord]:
    """Splits captured by an earlier call; a validation set that is full is what it would be under any larger limit."""
    splits = dict(earlier.splits) if earlier else {}
    validation, limit = splits.get("validation"), shard.documents.limit
    if validation and validation.documents == shard.documents.validation.documents and validation.limit < limit:
        splits["validation"] = validation.model_copy(update={"limit": limit})
    return splits


def _split_record(shards: Sequence[ShardRecord], split: Split, shard: ShardManifest, trailing: dict[str, int]) -> SplitRecord:
    """`trailing`: skipped after the last document of all, counted with the training split."""
    documents = sum(record.documents for record in shards)
    return SplitRecord(
        limit=shard.documents.limit,
        documents=documents,
        tokens=sum(record.tokens for record in shards),
        input_tokens=sum(record.input_tokens for record in shards),
        source_exhausted=split == "train" and documents < shard.documents.limit,
        skipped=merge_counts([*(record.skipped for record in shards), *([trailing] if split == "train" else [])]),
        shards=list(shards),
    )
