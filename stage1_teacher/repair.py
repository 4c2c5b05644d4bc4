"""Mend a cache: records from the manifest, the manifest from the records, payloads from where they strayed to or from the teacher."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    RULE,
    TEACHER,
    VOCABULARY,
    CacheManifest,
    Rule,
    ShardRecord,
    Split,
    parse_manifest,
    sidecar_name,
)
from pipeline.contract.logit_cache.verify import Bad, verify
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import read_sealed, write_sealed
from pipeline.contract.store import Store
from stage1_teacher.capture import CaptureRequest, capture
from stage1_teacher.rule import recorded_rule
from stage1_teacher.worker import OnShard


@dataclass
class Repair:
    """What was found and done. `remade` files hold other bytes than before: another kind of device made them."""

    found: list[Bad]
    mended: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)


def repair(cache: Store, on_shard: OnShard = lambda record, reused, seconds: None) -> Repair:
    """Make every file what it was, doing again exactly the shards that are lost.

    Raises:
        CacheError: the cache cannot be mended by a machine; the reason says what a person has to bring back.
        TeacherError, DocumentError: a shard has to be done again and what it is made from is not here.
    """
    verdict = verify(cache, deep=True)
    if not verdict.bad:
        return Repair([])
    manifest = _manifest(cache)
    before = {shard.name: shard.payload for shard in manifest.shards} if manifest else {}
    if manifest:
        _restore_records(cache, manifest)
    else:
        _restore_rule(cache)
    _bring_back_strays(cache, manifest, verdict.bad)
    left = [bad.file for bad in verify(cache, deep=True).bad]
    if left:
        _capture_again(cache, manifest, left, on_shard)
    remaining = verify(cache, deep=True).bad
    if remaining:
        raise CacheError(
            f"{cache}: {remaining[0].file} {remaining[0].reason} even after the repair; capture the cache again under another name"
        )
    after = {shard.name: shard.payload for shard in parse_manifest(cache.read_bytes(MANIFEST)).shards}
    remade = [name for name, payload in after.items() if name in before and before[name] != payload]
    return Repair(verdict.bad, [bad.file for bad in verdict.bad], remade)


def _manifest(cache: Store) -> CacheManifest | None:
    try:
        return parse_manifest(cache.read_bytes(MANIFEST))
    except (FileNotFoundError, ValueError):
        return None


def _restore_records(cache: Store, manifest: CacheManifest) -> None:
    """Rule, sidecars and the records of files, as the manifest has them."""
    rule = Rule(**{name: getattr(manifest, name) for name in Rule.model_fields})
    files = {"vocab_size": manifest.vocab_size, "files": [file.model_dump() for file in manifest.teacher]}
    records = {RULE: rule.model_dump(), TEACHER: files}
    records |= {VOCABULARY: manifest.vocabulary.model_dump()} if manifest.vocabulary else {}
    records |= {sidecar_name(shard.split, shard.index): shard.model_dump() for shard in manifest.shards}
    for name, value in records.items():
        if not _says(cache, name, value):
            write_sealed(cache, name, value)


def _says(cache: Store, name: str, value: dict[str, object]) -> bool:
    try:
        return read_sealed(cache, name) == value
    except (FileNotFoundError, ValueError):
        return False


def _restore_rule(cache: Store) -> None:
    """Without a manifest the rule has to be there: no other file says what the cache is of."""
    if recorded_rule(cache) is None:
        raise CacheError(
            f"{cache}: neither {MANIFEST} nor {RULE} can be read, so nothing says what its shards hold; "
            f"run 'pipeline cache-teacher --shard {cache.name}' with the settings it was captured with"
        )


def _bring_back_strays(cache: Store, manifest: CacheManifest | None, bad: list[Bad]) -> None:
    """A payload whose bytes are there under another name is put back: two swapped shards need no teacher."""
    wanted = {shard.payload.xxh3_128: shard.payload for shard in _shards(cache, manifest)}
    lost = {file.file for file in bad if file.file.endswith(".arrow") and file.file.startswith("shards/")}
    present = [name for name in cache.names("shards") if name.endswith(".arrow")]
    found = {digest: cache.read_bytes(name) for name in present if (digest := cache.hash(name)) in wanted and wanted[digest].name in lost}
    for digest, data in found.items():
        cache.write_bytes(wanted[digest].name, data)


def _shards(cache: Store, manifest: CacheManifest | None) -> Iterator[ShardRecord]:
    if manifest:
        yield from manifest.shards
        return
    for name in cache.names("shards"):
        if name.endswith(".json"):
            try:
                yield ShardRecord.model_validate(read_sealed(cache, name))
            except (FileNotFoundError, ValueError, ValidationError):
                continue


def _capture_again(cache: Store, manifest: CacheManifest | None, left: list[str], on_shard: OnShard) -> None:
    """What only the teacher can give: a damaged payload is taken away, so that the capture finds it missing."""
    rule = recorded_rule(cache)
    assert rule is not None
    splits: list[Split] = [split for split in ("train", "validation") if _has(cache, manifest, split)]
    for name in left:
        if name.startswith("shards/"):
            cache.remove(name)
    shard = ShardManifest.model_validate(rule.shard)
    try:
        capture(CaptureRequest(shard, cache, splits, overrides=rule.overrides, on_shard=on_shard))
    except PipelineError as error:
        raise type(error)(f"{cache}: {', '.join(left)} can only be made again from teacher and documents: {error}") from None


def _has(cache: Store, manifest: CacheManifest | None, split: str) -> bool:
    if manifest:
        return split in manifest.splits
    return any(Path(name).name.startswith(f"{split}-") for name in cache.names("shards"))
