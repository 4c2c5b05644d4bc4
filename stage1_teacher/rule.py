"""The rule a cache is made by: what it is made from, found and hashed, and written into the folder before the first shard."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.contract.errors import CacheError, DocumentError, NotThereYet, PipelineError
from pipeline.contract.fingerprint import Identity, declared_identity, require_same
from pipeline.contract.logit_cache.index import RULE, Rule, read_manifest, read_rule
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import Damaged, write_sealed
from pipeline.contract.store import Store
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.teacher_files import TeacherFiles, find_teacher, teacher_is_local


@dataclass(frozen=True)
class Inputs:
    """What a capture reads, and the identity of the cache it makes, but for the codec."""

    teacher: TeacherFiles
    documents: DocumentSource
    identity: Identity


def find_inputs(shard: ShardManifest, recorded: Identity | None = None) -> Inputs:
    """Find teacher and documents and hash them; this reads every file once. `recorded`: the identity in the cache, if any.

    Raises:
        TeacherError, DocumentError, NotThereYet: all that is missing, in one line, as the kind of the first.
    """
    missing: list[PipelineError] = []
    teacher = documents = None
    try:
        teacher = find_teacher(shard.teacher)
    except PipelineError as error:
        missing.append(error)
    try:
        documents = open_documents(shard.documents)
    except PipelineError as error:
        missing.append(error)
    if shard.engine != "transformers":
        missing.append(
            NotThereYet(
                f"engine={shard.engine}: this version captures with transformers; add --engine transformers, or --set engine=transformers"
            )
        )
    if missing:
        raise type(missing[0])("; ".join(str(error) for error in missing))
    assert teacher is not None and documents is not None
    content = documents.identity((recorded or {}).get("documents.content"))
    return Inputs(teacher, documents, {**declared_identity(shard), **teacher.identity(), "documents.content": content})


def present_identity(shard: ShardManifest, cached: Identity, *, read_documents: bool = False) -> Identity:
    """The identity as far as this machine can tell, to hold against the one in a cache.

    The teacher's hashes are in it if its files are here. The documents' are if `read_documents` or if they are named
    differently than in the cache, and can be read.
    """
    identity = declared_identity(shard)
    if teacher_is_local(shard.teacher):
        identity |= find_teacher(shard.teacher).identity()
    renamed = any(identity[key] != cached.get(key) for key in ("documents.source", "documents.files", "documents.packages"))
    if read_documents or renamed:
        with suppress(DocumentError):  # not here: then the declared names decide
            identity["documents.content"] = open_documents(shard.documents).identity(cached.get("documents.content"))
    return identity


def next_move(shard: ShardManifest) -> str:
    """What to do with a cache that was made by another rule."""
    return f"give the same settings, or make another cache: cache-teacher --shard {shard.name} --set name={shard.name}-2"


def recorded_rule(cache: Store) -> Rule | None:
    """The rule that the folder's shards are made by, from the manifest where its own file is damaged; None in a new folder.

    Raises:
        CacheError: it is damaged, and no manifest says what the shards hold.
    """
    try:
        return read_rule(cache)
    except Damaged as error:
        problem = str(error)
    try:
        manifest = read_manifest(cache)
    except CacheError:
        raise CacheError(
            f"{cache}/{RULE}: {problem}, and no manifest says what its shards hold; remove {cache} and run the same command again"
        ) from None
    return Rule(**{name: getattr(manifest, name) for name in Rule.model_fields})


def claim(cache: Store, shard: ShardManifest, overrides: dict[str, Any], identity: Identity, codec: str) -> Rule:
    """Write the rule down before the first shard, so that a later call by another rule is refused.

    Raises:
        CacheError: the folder is another rule's.
    """
    earlier = recorded_rule(cache)
    identity = identity | {"cache.codec": codec}
    if earlier is not None:
        require_same(earlier.identity, identity, str(cache), next_move(shard))
        identity = earlier.identity
    rule = Rule(format_version=identity["format_version"], shard=shard.model_dump(), overrides=overrides, identity=identity, codec=codec)
    if rule != earlier or cache.size(RULE) is None:
        write_sealed(cache, RULE, rule.model_dump())
    return rule
