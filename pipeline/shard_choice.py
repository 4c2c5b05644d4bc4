"""Which shard a command means: a manifest's name, with the settings that its cache was captured with.

A cache remembers the `--set` values of its capture, so that `pipeline train --shard NAME` needs none of them again.
Values given now beat the remembered ones, and then have to agree with the cache.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.contract.errors import CacheError, ManifestError
from pipeline.contract.layout import ArtifactRoot, trained_model, trained_on
from pipeline.contract.logit_cache.index import MANIFEST, RULE, TEACHER, CacheManifest, has_manifest, read_manifest, read_rule
from pipeline.contract.manifest.find import load_shard, names
from pipeline.contract.manifest.overrides import merge, nested
from pipeline.contract.manifest.shard import TRAINED, ShardManifest
from pipeline.contract.manifest.strict import parse
from pipeline.contract.sealed import Damaged
from pipeline.contract.store import Store


@dataclass(frozen=True)
class CapturedShard:
    """A shard as a finished cache holds it, checked against its manifest by declared values only."""

    shard: ShardManifest
    cache: Store
    manifest: CacheManifest


def remembered_overrides(cache: Store) -> dict[str, Any]:
    """The `--set` values that a finished cache was captured with, none where there is none; from its rule if the manifest is damaged."""
    try:
        return read_manifest(cache).overrides
    except CacheError:
        pass
    with suppress(Damaged):
        rule = read_rule(cache) if has_manifest(cache) else None
        return rule.overrides if rule else {}
    return {}


def capture_settings(name: str, overrides: dict[str, Any], root: ArtifactRoot) -> tuple[ShardManifest, dict[str, Any]]:
    """The shard to capture and the overrides it is made of: those its cache remembers, then the ones given now.

    Raises:
        ManifestError: unknown name, unknown key, or a value out of its rule.
    """
    if name not in names("shards") and has_manifest(root.cache(name)):
        manifest = read_manifest(root.cache(name))
        return with_teacher_of(root, _as_captured(manifest, root.cache(name), overrides)), manifest.overrides | overrides
    settings = remembered_overrides(root.cache(load_shard(name, overrides).name)) | overrides
    return with_teacher_of(root, load_shard(name, settings)), settings


def captured_shard(name: str, root: ArtifactRoot, overrides: dict[str, Any]) -> CapturedShard:
    """The shard `name` under what its cache remembers and `overrides`.

    Raises:
        CacheError: no finished cache; the message names the command that makes it.
        ManifestError: neither a manifest nor a cache has that name.
    """
    declared = load_shard(name, overrides) if _is_manifest(name) else None
    cache = root.cache(declared.name if declared else name)
    if not has_manifest(cache):
        if declared is None:
            raise _unknown(name)
        raise _no_cache(cache, name, root)
    manifest = read_manifest(cache)
    shard = load_shard(name, manifest.overrides | overrides) if declared else _as_captured(manifest, cache, overrides)
    return CapturedShard(with_teacher_of(root, shard), cache, manifest)


def cache_of(name: str, root: ArtifactRoot) -> Store:
    """The folder of a shard's cache, whole or not.

    Raises:
        CacheError: nothing was captured there.
        ManifestError: neither a manifest nor a cache has that name.
    """
    known = _is_manifest(name)
    cache = root.cache(load_shard(name).name if known else name)
    if any(cache.size(record) is not None for record in (MANIFEST, RULE, TEACHER)):
        return cache
    if not known:
        raise _unknown(name)
    raise _no_cache(cache, name, root)


def with_teacher_of(root: ArtifactRoot, shard: ShardManifest) -> ShardManifest:
    """The shard, a teacher of one's own named by its folder, there or not."""
    name = shard.teacher.trained_on
    if name is None:
        return shard
    model = str(trained_model(root.teacher(name)))
    return shard.model_copy(update={"teacher": shard.teacher.model_copy(update={"model": model})})


def teacher_name(root: ArtifactRoot, shard: ShardManifest) -> str:
    """The teacher as a manifest names it: the same wherever the root is."""
    trained = trained_on(Path(shard.teacher.model))
    return f"{TRAINED}{trained[1]}" if trained and trained[0] == str(root.path) else shard.teacher.model


def _is_manifest(name: str) -> bool:
    return name in names("shards") or name.endswith((".yaml", ".yml")) or "/" in name


def _unknown(name: str) -> ManifestError:
    return ManifestError(f"{name!r}: no shard manifest and no cache has that name; known shards are {', '.join(names('shards'))}")


def _no_cache(cache: Store, name: str, root: ArtifactRoot) -> CacheError:
    return CacheError(f"{cache}: holds no finished cache; make it with 'pipeline cache-teacher --shard {name}'{root_hint(root)}")


def _as_captured(manifest: CacheManifest, cache: Store, overrides: dict[str, Any]) -> ShardManifest:
    """The shard as its cache holds it: there is no manifest file of that name."""
    return parse(ShardManifest, merge(manifest.shard, nested(overrides)), f"{cache}/manifest.json")


def root_hint(root: ArtifactRoot) -> str:
    """What to add to a command that is to find this root again; nothing for the default."""
    return "" if root.location == "artifacts" else f" --root {root.location}"
