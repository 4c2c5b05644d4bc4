"""Records that were lost after a cache was finished: its manifest holds all of them."""

from typing import Any

from pipeline.contract.logit_cache.index import RULE, CacheManifest, Rule, read_named_sidecar, read_rule, shard_of
from pipeline.contract.logit_cache.verify import manifest_records, record_problem
from pipeline.contract.sealed import Damaged, write_sealed
from pipeline.contract.store import Store


def lost_records(cache: Store, manifest: CacheManifest, *, sidecars: bool = True) -> dict[str, dict[str, Any]]:
    """What records that are missing, damaged or of another cache have to say, by their files.

    Rule and sidecars of an extension that is on its way, or was stopped, say more than the manifest. They are not lost. A rule that
    says less is of a command with a smaller range, which was started beside the one that finished.
    """
    records = {name: value for name, value in manifest_records(manifest).items() if sidecars or shard_of(name) is None}
    differ = {name: value for name, value in records.items() if record_problem(cache, name, value)}
    return {name: value for name, value in differ.items() if not _of_an_extension(cache, manifest, name, value)}


def restore(cache: Store, records: dict[str, dict[str, Any]]) -> None:
    """Write them as the manifest has them."""
    for name, value in records.items():
        write_sealed(cache, name, value)


def _of_an_extension(cache: Store, manifest: CacheManifest, name: str, value: dict[str, Any]) -> bool:
    if name == RULE:
        try:
            rule = read_rule(cache)
        except Damaged:
            return False
        return rule is not None and rule.identity == manifest.identity and _limit(rule) > _limit(manifest)
    record = read_named_sidecar(cache, name) if shard_of(name) else None
    return record is not None and record.made_by.model_dump() == value["made_by"]


def _limit(made_by: Rule | CacheManifest) -> int:
    return int(made_by.shard["documents"]["limit"])
