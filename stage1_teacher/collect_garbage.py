"""`pipeline cache gc`: remove what no record names."""

from dataclasses import dataclass

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, remove, writer_lives
from pipeline.contract.logit_cache.index import CacheManifest, read_manifest, read_named_sidecar, shard_of
from pipeline.contract.store import Store
from stage1_teacher.leases import FOLDER, require_no_worker


@dataclass(frozen=True)
class Garbage:
    """Files that were removed, or would be, and their bytes."""

    files: list[str]
    bytes: int


def collect_garbage(cache: Store, *, dry_run: bool = False, force: bool = False) -> Garbage:
    """Remove payloads that no record names, sidecars without a payload, their logs, leases, and halves of killed writers.

    Shards that an extension has finished before it was stopped are named by their sidecars, and stay.

    Raises:
        CacheError: there is no finished cache, or a worker may be at work and not `force`.
    """
    manifest = read_manifest(cache)
    if not force:
        require_no_worker(cache)
    kept = {shard.payload.name for shard in manifest.shards}
    kept |= {f"{folder}/{shard.name}.json" for shard in manifest.shards for folder in ("shards", "logs")}
    kept |= _extension(cache, manifest)
    garbage = [name for folder in ("shards", "logs", FOLDER) for name in cache.names(folder) if name not in kept]
    found = Garbage(garbage + _halves(cache), sum(cache.size(name) or 0 for name in garbage))
    if not dry_run:
        for name in found.files:
            _remove(cache, name)
    return found


def _extension(cache: Store, manifest: CacheManifest) -> set[str]:
    """Files of shards that are finished, of this cache, and not in the manifest yet."""
    kept: set[str] = set()
    for name in cache.names("shards"):
        record = read_named_sidecar(cache, name) if name.endswith(".json") else None
        if record and record.made_by.fingerprint == manifest.fingerprint and not record.payload.problem(cache, deep=False):
            kept |= {name, record.payload.name, f"logs/{shard_of(name)}.json"}
    return kept


def _halves(cache: Store) -> list[str]:
    """Temporary files and folders but those of living processes here; a remote store has none, its uploads are whole or aborted."""
    if not cache.is_local:
        return []
    halves = (path for path in cache.path.rglob(f"{TEMPORARY_PREFIX}*") if not writer_lives(path))
    return sorted(path.relative_to(cache.path).as_posix() for path in halves)


def _remove(cache: Store, name: str) -> None:
    if cache.is_local:
        remove(cache.path / name)
    else:
        cache.remove(name)
