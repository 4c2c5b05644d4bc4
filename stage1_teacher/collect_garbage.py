"""`pipeline cache gc`: remove what no record names."""

from dataclasses import dataclass

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, remove
from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.store import Store
from stage1_teacher.leases import FOLDER, living_leases


@dataclass(frozen=True)
class Garbage:
    """Files that were removed, or would be, and their bytes."""

    files: list[str]
    bytes: int


def collect_garbage(cache: Store, *, dry_run: bool = False, force: bool = False) -> Garbage:
    """Remove payloads that the manifest does not name, with their sidecars and logs, leases, and halves of killed writers.

    Raises:
        CacheError: there is no finished cache, or a worker may be at work and not `force`.
    """
    manifest = read_manifest(cache)
    living = living_leases(cache)
    if living and not force:
        raise CacheError(
            f"{cache}: {living[0]} is in the hands of a worker, or of one that was lost on another machine; "
            "wait for the capture to end, or add --force if none is running"
        )
    names = {shard.name for shard in manifest.shards}
    kept = {shard.payload.name for shard in manifest.shards}
    kept |= {f"{folder}/{name}.json" for name in names for folder in ("shards", "logs")}
    garbage = [name for folder in ("shards", "logs", FOLDER) for name in cache.names(folder) if name not in kept]
    found = Garbage(garbage + _halves(cache), sum(cache.size(name) or 0 for name in garbage))
    if not dry_run:
        for name in found.files:
            _remove(cache, name)
    return found


def _halves(cache: Store) -> list[str]:
    """Temporary files and folders; a remote store has none, its uploads are whole or aborted."""
    if not cache.is_local:
        return []
    return sorted(path.relative_to(cache.path).as_posix() for path in cache.path.rglob(f"{TEMPORARY_PREFIX}*"))


def _remove(cache: Store, name: str) -> None:
    if cache.is_local:
        remove(cache.path / name)
    else:
        cache.remove(name)
