"""The rule a cache is made by: what it is made from, found and hashed, and written into the folder before the first shard."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.contract.errors import CacheError, DocumentError, PipelineError
from pipeline.contract.fingerprint import Identity, declared_identity, fingerprint, require_same
from pipeline.contract.logit_cache.index import RULE, Rule, find_manifest, read_named_sidecar, read_rule
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.logit_cache.verify import record_problem
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import Damaged, write_sealed
from pipeline.contract.store import Store
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.engines.open_engine import require_installed
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
        TeacherError, DocumentError: all that is missing, in one line, as the kind of the first.
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
    try:
        require_installed(shard.engine)
    except PipelineError as error:
        missing.append(error)
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
    """The rule that the folder's shards are made by; None in a new folder, or where neither rule nor manifest can be read.

    Raises:
        CacheError: it is of another format version.
    """
    with suppress(Damaged):
        rule = read_rule(cache)
        if rule and rule.format_version != FORMAT_VERSION:
            raise CacheError(
                f"{cache}/{RULE}: format_version {rule.format_version} is not {FORMAT_VERSION}, the one this version reads; "
                "use the version of this tool that made it, or a newer one"
            )
        if rule:
            return rule
    manifest = find_manifest(cache)
    return Rule(**{name: getattr(manifest, name) for name in Rule.model_fields}) if manifest else None


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
    else:
        _require_no_other_shards(cache, fingerprint(identity), next_move(shard))
    rule = Rule(format_version=identity["format_version"], shard=shard.model_dump(), overrides=overrides, identity=identity, codec=codec)
    if record_problem(cache, RULE, rule.model_dump()):
        write_sealed(cache, RULE, rule.model_dump())
    return rule


def _require_no_other_shards(cache: Store, ours: str, move: str) -> None:
    """Where rule and manifest are lost, the shards themselves say by which rule they are made."""
    for name in cache.names("shards"):
        record = read_named_sidecar(cache, name) if name.endswith(".json") else None
        if record and record.made_by.fingerprint != ours:
            theirs = record.made_by.fingerprint
            raise CacheError(f"{cache}: its rule is lost, and {name} was made by another one (fingerprint {theirs}, not {ours}); {move}")
