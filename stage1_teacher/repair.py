"""Mend a cache: records from the manifest, the manifest from the records, payloads from where they strayed to or from the teacher."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.fingerprint import require_same
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    RULE,
    CacheManifest,
    Rule,
    ShardRecord,
    Split,
    find_manifest,
    parse_manifest,
    read_named_sidecar,
    shard_of,
)
from pipeline.contract.logit_cache.verify import Bad, manifest_records, record_problem, verify
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.store import Store
from stage1_teacher.capture import CaptureRequest, capture
from stage1_teacher.leases import require_no_worker
from stage1_teacher.lost_records import restore
from stage1_teacher.rule import find_inputs, next_move, recorded_rule
from stage1_teacher.worker import OnShard

NAMED = 3
"""Files that an error names, of many."""


@dataclass
class Repair:
    """What was found and done. `remade` shards hold other bytes than before: another kind of device made them."""

    found: list[Bad]
    mended: list[str] = field(default_factory=list)
    remade: list[str] = field(default_factory=list)


def repair(cache: Store, on_shard: OnShard = lambda record, reused, seconds: None, *, force: bool = False) -> Repair:
    """Make every file what it was, doing again exactly the shards that are lost.

    Raises:
        CacheError: a worker may be at work and not `force`; or the cache cannot be mended by a machine, and the reason says what a
            person has to bring back.
        TeacherError, DocumentError: a shard has to be done again and what it is made from is not here.
    """
    found = verify(cache, deep=True).bad
    if not found:
        return Repair([])
    if not force:
        require_no_worker(cache)
    manifest = find_manifest(cache)
    rule = _restore_records(cache, manifest)
    _bring_back_strays(cache, _shards(cache, manifest), found)
    left = [bad.file for bad in verify(cache, deep=True).bad]
    if left:
        _capture_again(cache, rule, _splits(cache, manifest, rule, left), left, on_shard)
    _require_whole(cache)
    before = {shard.name: shard.payload for shard in manifest.shards} if manifest else {}
    after = {shard.name: shard.payload for shard in parse_manifest(cache.read_bytes(MANIFEST)).shards}
    remade = [name for name, payload in after.items() if name in before and before[name] != payload]
    return Repair(found, [bad.file for bad in found], remade)


def _restore_records(cache: Store, manifest: CacheManifest | None) -> Rule:
    """Make every record say what the manifest says, that of an extension too. Without a manifest the rule has to be there."""
    records = manifest_records(manifest) if manifest else {}
    restore(cache, {name: value for name, value in records.items() if record_problem(cache, name, value)})
    rule = recorded_rule(cache)
    if rule is None:
        raise CacheError(
            f"{cache}: neither {MANIFEST} nor {RULE} can be read, so nothing says what its shards hold; "
            f"run 'pipeline cache-teacher --shard {cache.name}' with the settings it was captured with"
        )
    return rule


def _shards(cache: Store, manifest: CacheManifest | None) -> list[ShardRecord]:
    """The shards of the manifest; without one, those whose sidecars can be read."""
    if manifest:
        return manifest.shards
    records = [read_named_sidecar(cache, name) for name in cache.names("shards") if name.endswith(".json")]
    return [record for record in records if record]


def _bring_back_strays(cache: Store, shards: Sequence[ShardRecord], bad: Sequence[Bad]) -> None:
    """A payload whose bytes are there under another name is put back: shards that changed places need no teacher."""
    problems = {part.file for part in bad}
    lost = {shard.payload.xxh3_128: shard.payload for shard in shards if shard.payload.name in problems}
    right = {shard.payload.name for shard in shards} - problems
    sources = [name for name in cache.names("shards") if lost and name.endswith(".arrow") and name not in right]
    moves = {lost[digest].name: name for name in sources if (digest := cache.hash(name)) in lost}
    while moves:
        target = next((name for name in moves if name not in moves.values()), next(iter(moves)))
        _move_round(cache, moves, target)


def _move_round(cache: Store, moves: dict[str, str], target: str) -> None:
    """Copy to `target` and then to where that was copied from, and so on; of a circle the first is held in memory."""
    first, held = target, cache.read_bytes(target) if target in moves.values() else b""
    while target in moves:
        source = moves.pop(target)
        cache.write_bytes(target, held if source == first else cache.read_bytes(source))
        target = source


def _splits(cache: Store, manifest: CacheManifest | None, rule: Rule, left: Sequence[str]) -> list[Split]:
    """What to capture again: splits that have lost something, and those that the rule's own range is of."""
    if manifest is None:
        there = {name.removeprefix("shards/").partition("-")[0] for name in cache.names("shards")}
        return [split for split in ("train", "validation") if split in there]
    limit = rule.shard["documents"]["limit"]
    hurt = {unit.partition("-")[0] for name in left if (unit := shard_of(name))}
    return [split for split, record in manifest.splits.items() if split in hurt or record.limit == limit]


def _capture_again(cache: Store, rule: Rule, splits: list[Split], left: Sequence[str], on_shard: OnShard) -> None:
    """What only the teacher can give: once it and the documents are here, what is damaged makes way for it."""
    shard = ShardManifest.model_validate(rule.shard)
    try:
        require_same(rule.identity, find_inputs(shard, rule.identity).identity, str(cache), next_move(shard))
        for name in left:
            if name.startswith("shards/"):
                cache.remove(name)
        capture(CaptureRequest(shard, cache, splits, overrides=rule.overrides, on_shard=on_shard))
    except PipelineError as error:
        named = ", ".join(left[:NAMED]) + (f" and {len(left) - NAMED} more" if len(left) > NAMED else "")
        raise type(error)(f"{cache}: {named} can only be made again from teacher and documents: {error}") from None


def _require_whole(cache: Store) -> None:
    remaining = verify(cache, deep=True).bad
    if remaining:
        raise CacheError(
            f"{cache}: {remaining[0].file} {remaining[0].reason} even after the repair; capture the cache again under another name"
        )
