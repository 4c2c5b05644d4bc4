"""Prove a cache: what is on disk is what was written. Every file but logs and leases is covered."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pipeline.contract.errors import CacheError
from pipeline.contract.fingerprint import fingerprint
from pipeline.contract.logit_cache.codec import make_codec, needs_vocabulary
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    RULE,
    TEACHER,
    VOCABULARY,
    CacheManifest,
    FileRecord,
    OtherVersion,
    ShardRecord,
    parse_manifest,
    read_rule,
    recorded_files,
    shard_of,
    sidecar_name,
)
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.reader import map_payload, read_batch, read_vocabulary
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.sealed import Damaged, read_sealed
from pipeline.contract.store import Store


@dataclass(frozen=True)
class Bad:
    """A file of the cache that is not what was written. `file` is relative to the cache."""

    file: str
    reason: str

    @property
    def shard(self) -> str:
        """The shard it belongs to, or the file itself."""
        return shard_of(self.file) or self.file


@dataclass(frozen=True)
class Verdict:
    """What `verify` found: `bad` is empty when the cache is whole."""

    shards: int
    bad: list[Bad]

    def as_json(self) -> dict[str, Any]:
        return {"ok": not self.bad, "shards": self.shards, "bad": [{"shard": part.shard, **asdict(part)} for part in self.bad]}


def verify(cache: Store, *, deep: bool = False) -> Verdict:
    """Compare manifest, records, sizes and footers; `deep` also hashes every file and decodes every document.

    With a manifest that cannot be read, the records are checked as far as they bear witness of themselves.

    Raises:
        CacheError: there is no cache.
    """
    try:
        manifest = parse_manifest(cache.read_bytes(MANIFEST))
    except FileNotFoundError:
        if all(cache.size(record) is None for record in (RULE, TEACHER)):
            raise CacheError(f"{cache}: holds no cache; make it with 'pipeline cache-teacher --shard {cache.name}'") from None
        return _without_manifest(cache, "is missing: the capture is not finished, or the file is lost")
    except (Damaged, OtherVersion) as error:
        return _without_manifest(cache, str(error))
    bad = [Bad(name, problem) for name, value in manifest_records(manifest).items() if (problem := record_problem(cache, name, value))]
    return Verdict(len(manifest.shards), [*bad, *_files(cache, manifest, deep)])


def manifest_records(manifest: CacheManifest) -> dict[str, dict[str, Any]]:
    """What each record has to say, by its file: rule, teacher, vocabulary, sidecars."""
    rule = {name: getattr(manifest, name) for name in ("format_version", "shard", "overrides", "identity", "codec")}
    files = {"vocab_size": manifest.vocab_size, "files": [file.model_dump() for file in manifest.teacher]}
    vocabulary = {VOCABULARY: manifest.vocabulary.model_dump()} if manifest.vocabulary else {}
    sidecars = {sidecar_name(shard.split, shard.index): shard.model_dump() for shard in manifest.shards}
    return {RULE: rule, TEACHER: files, **vocabulary, **sidecars}


def record_problem(cache: Store, name: str, value: dict[str, Any] | None = None) -> str | None:
    """What is wrong with a sealed record: lost, damaged, or another than `value` where that is given."""
    try:
        found = read_sealed(cache, name)
    except FileNotFoundError:
        return "is missing"
    except Damaged as error:
        return str(error)
    return None if value in (None, found) else "is not what the manifest says: of an extension that has not ended, or of another cache"


def _without_manifest(cache: Store, reason: str) -> Verdict:
    """Each record by its seal, the files by their records, sidecars by the rule."""
    bad = [Bad(MANIFEST, reason)]
    rule = None
    try:
        rule = read_rule(cache)
        bad += [] if rule else [Bad(RULE, "is missing")]
    except Damaged as error:
        bad.append(Bad(RULE, str(error)))
    for name in (TEACHER, *([VOCABULARY] if rule and needs_vocabulary(rule.codec) else [])):
        problem = record_problem(cache, name)
        bad += [Bad(name, problem)] if problem else _bad_files(cache, recorded_files(cache, name))
    sidecars = [name for name in cache.names("shards") if name.endswith(".json")]
    for name in sidecars:
        bad += _sidecar_problems(cache, name, fingerprint(rule.identity) if rule else None)
    return Verdict(len(sidecars), bad)


def _sidecar_problems(cache: Store, name: str, made_by: str | None) -> Iterator[Bad]:
    problem = record_problem(cache, name)
    if problem:
        yield Bad(name, problem)
        return
    try:
        record = ShardRecord.model_validate(read_sealed(cache, name))
    except ValidationError as error:
        yield Bad(name, f"has another form ({error.errors()[0]['msg']})")
        return
    if sidecar_name(record.split, record.index) != name:
        yield Bad(name, "is of another shard")
    elif made_by not in (None, record.made_by.fingerprint):
        yield Bad(name, "is of another cache")
    else:
        yield from _bad_files(cache, [record.payload])


def _bad_files(cache: Store, files: list[FileRecord], *, deep: bool = True) -> Iterator[Bad]:
    for file in files:
        if problem := file.problem(cache, deep=deep):
            yield Bad(file.name, problem)


def _files(cache: Store, manifest: CacheManifest, deep: bool) -> Iterator[Bad]:
    yield from _bad_files(cache, [*manifest.teacher, *([manifest.vocabulary] if manifest.vocabulary else [])], deep=deep)
    vocabulary = _vocabulary(cache, manifest)
    for shard in manifest.shards:
        problem = shard.payload.problem(cache, deep=deep) or _payload_problem(cache, shard, manifest, vocabulary, deep)
        if problem:
            yield Bad(shard.payload.name, problem)


def _vocabulary(cache: Store, manifest: CacheManifest) -> Vocabulary | None:
    try:
        return read_vocabulary(cache, manifest) if manifest.vocabulary else None
    except CacheError:
        return None  # it is bad and named so; documents cannot be decoded


def _payload_problem(cache: Store, shard: ShardRecord, manifest: CacheManifest, vocabulary: Vocabulary | None, deep: bool) -> str | None:
    try:
        payload = map_payload(cache, shard.payload)
        found = pa.ipc.open_file(payload).num_record_batches
        if found != len(shard.batches):
            return f"{found} record batches, {len(shard.batches)} were written"
        if not deep or (manifest.vocabulary and not vocabulary):
            return None
        codec = make_codec(manifest.codec, Targets.model_validate(manifest.shard["targets"]), vocabulary)
        for batch in shard.batches:
            columns = read_batch(payload, batch, codec.schema)
            for row in range(batch.documents):
                read_rows(codec, columns, row)
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
        return f"cannot be read ({str(error).splitlines()[0]})"
    return None
