"""The rule a cache is made by: what it is made from, found and hashed, and written into the folder before the first shard."""

import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.contract.atomic_io import sweep_temporaries, write_json
from pipeline.contract.errors import CacheError, DocumentError, NotThereYet, PipelineError
from pipeline.contract.fingerprint import Identity, declared_identity, require_same
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.teacher_files import TeacherFiles, find_teacher, teacher_is_local


@dataclass(frozen=True)
class Inputs:
    """What a capture reads, and the identity of the cache it makes."""

    teacher: TeacherFiles
    documents: DocumentSource
    identity: Identity


def find_inputs(shard: ShardManifest) -> Inputs:
    """Find teacher and documents and hash them; this reads every file once.

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
    return Inputs(teacher, documents, {**declared_identity(shard), **teacher.identity(), "documents.content": documents.identity()})


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
            identity["documents.content"] = open_documents(shard.documents).identity()
    return identity


def next_move(shard: ShardManifest) -> str:
    """What to do with a cache that was made by another rule."""
    return f"give the same settings, or make another cache: cache-teacher --shard {shard.name} --set name={shard.name}-2"


def claim_folder(cache: Path, identity: Identity, otherwise: str) -> None:
    """Write the rule down before the first shard, so that a later call by another rule is refused.

    Raises:
        CacheError: the folder is another rule's, with `otherwise` as the next move.
    """
    path = cache / "identity.json"
    if path.is_file():
        require_same(_recorded_identity(path), identity, str(cache), otherwise)
    write_json(path, identity)
    sweep_temporaries(cache)
    sweep_temporaries(cache / "shards")


def _recorded_identity(path: Path) -> Identity:
    try:
        return dict(json.loads(path.read_bytes()))
    except (ValueError, TypeError):
        return _manifest_identity(path)


def _manifest_identity(path: Path) -> Identity:
    try:
        return read_manifest(path.parent).identity
    except CacheError:
        raise CacheError(
            f"{path}: is damaged and no manifest says what its shards hold; remove {path.parent} and run the same command again"
        ) from None
