"""What identifies a cache: the rule it was made by. Not how far it got, nor by how many workers.

Two kinds of field. *Declared* ones are the manifest's words. *Content* ones are hashes of what those words led to
(`teacher.files`, `tokenizer.files`, `documents.content`); where content is known on both sides it decides, so a
teacher that only moved to another folder is still the same teacher.
"""

from typing import Any

from pipeline.contract.errors import CacheError
from pipeline.contract.hashing import hash_json
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.manifest.shard import ShardManifest, Targets

Identity = dict[str, Any]

_NAME_OF_CONTENT = {
    "teacher.model": "teacher.files",
    "teacher.revision": "teacher.files",
    "documents.files": "documents.content",
    "documents.packages": "documents.content",
}


VLLM_SETTINGS = {"head_dtype": "float32", "prefix_caching": False}
"""How vLLM is set up wherever it runs, as far as it decides what it computes."""


def declared_identity(shard: ShardManifest) -> Identity:
    """Every field of the manifest that decides what a row holds, by its dotted key; codec "auto" is decided at the capture."""
    documents, teacher = shard.documents, shard.teacher
    identity = {
        "format_version": FORMAT_VERSION,
        "teacher.model": teacher.model,
        "teacher.revision": teacher.revision,
        "teacher.dtype": teacher.dtype,
        "documents.source": documents.source,
        "documents.files": documents.files,
        "documents.packages": documents.packages,
        "documents.column": documents.column,
        "documents.undecodable": documents.undecodable,
        "documents.duplicates": documents.duplicates,
        "documents.max_length": documents.max_length,
        "documents.separator": documents.separator,
        "documents.validation.documents": documents.validation.documents,
        "documents.validation.every": documents.validation.every,
        **_targets_identity(shard.targets),
        **_engine_identity(shard),
        "cache.documents_per_shard": shard.cache.documents_per_shard,
    }
    return identity if shard.cache.codec == "auto" else identity | {"cache.codec": shard.cache.codec}


def _engine_identity(shard: ShardManifest) -> Identity:
    """The engine, and the settings under which its numbers are the same but for rounding in other batches and on other devices."""
    if shard.engine != "vllm":
        return {"engine": shard.engine}
    settings = {f"engine.{name}": value for name, value in VLLM_SETTINGS.items()}
    return {"engine": shard.engine, **settings, "cache.tensor_parallel": shard.cache.tensor_parallel}


def _targets_identity(targets: Targets) -> Identity:
    """Only what the mode heeds: k says nothing of a sample."""
    heeded = {"topk": ("k",), "threshold": ("k", "c"), "sampled": ("c",)}[targets.mode]
    return {
        "targets.mode": targets.mode,
        **{f"targets.{name}": getattr(targets, name) for name in heeded},
        "targets.temperatures": targets.all_temperatures,
        "targets.entropy": targets.entropy,
    }


def fingerprint(identity: Identity) -> str:
    """One hash of an identity, names of things whose content is hashed left out."""
    named = {key for key, content in _NAME_OF_CONTENT.items() if content in identity}
    return hash_json({key: value for key, value in identity.items() if key not in named})


def first_difference(cached: Identity, wanted: Identity) -> tuple[str, Any, Any] | None:
    """The first field in which two identities differ: its name, the cache's value, the wanted value."""
    for key in [key for key in wanted if key in cached]:
        content = _NAME_OF_CONTENT.get(key)
        decided_by_content = content is not None and content in cached and content in wanted
        if not decided_by_content and cached[key] != wanted[key]:
            return key, cached[key], wanted[key]
    return None


def require_same(cached: Identity, wanted: Identity, cache: str, next_move: str) -> None:
    """Refuse a cache that was made by another rule.

    Raises:
        CacheError: naming the first differing field, both values and `next_move`.
    """
    difference = first_difference(cached, wanted)
    if difference:
        field, theirs, ours = difference
        raise CacheError(f"{cache}: was made with {field}={_brief(theirs)}, the manifest says {field}={_brief(ours)}; {next_move}")


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 160 else f"{text[:100]}... (hash {hash_json(value)[:12]})"
