"""Prove a cache: what is on disk is what was written. Every file but logs and leases is covered."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pydantic import ValidationError

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.columns import Columns
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
    sidecar_name,
)
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.reader import read_vocabulary
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
        stem = self.file.removeprefix("shards/")
        return stem.removesuffix(".json").removesuffix(".arrow")[: len("validation-00000")] if stem != self.file else self.file


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
        if cache.size(RULE) is None:
            raise CacheError(f"{cache}: holds no cache; make it with 'pipeline cache-teacher --shard {cache.name}'") from None
        return Verdict(*_without_manifest(cache, "is missing: the capture is not finished, or the file is lost"))
    except (Damaged, OtherVersion) as error:
        return Verdict(*_without_manifest(cache, str(error)))
    return Verdict(len(manifest.shards), [*_records(cache, manifest), *_files(cache, manifest, deep)])


def _without_manifest(cache: Store, reason: str) -> tuple[int, list[Bad]]:
    bad, shards = [Bad(MANIFEST, reason)], 0
    sealed = [RULE, TEACHER, *(name for name in cache.names("shards") if name.endswith(".json"))]
    for name in sealed:
        try:
            value = read_sealed(cache, name)
            if name.startswith("shards/"):
                shards += 1
                record = ShardRecord.model_validate(value)
                problem = record.payload.problem(cache) or (
                    "names another shard" if sidecar_name(record.split, record.index) != name else None
                )
                bad += [Bad(record.payload.name, problem)] if problem else []
        except FileNotFoundError:
            bad.append(Bad(name, "is missing"))
        except (Damaged, ValidationError) as error:
            bad.append(Bad(name, str(error).splitlines()[0]))
    return shards, bad


def _records(cache: Store, manifest: CacheManifest) -> Iterator[Bad]:
    """Every record has to say what the manifest says."""
    files = {"vocab_size": manifest.vocab_size, "files": [file.model_dump() for file in manifest.teacher]}
    rule = {name: getattr(manifest, name) for name in ("format_version", "shard", "overrides", "identity", "codec")}
    wanted: list[tuple[str, dict[str, Any]]] = [(RULE, rule), (TEACHER, files)]
    wanted += [(VOCABULARY, manifest.vocabulary.model_dump())] if manifest.vocabulary else []
    wanted += [(sidecar_name(shard.split, shard.index), shard.model_dump()) for shard in manifest.shards]
    for name, value in wanted:
        problem = _record_problem(cache, name, value)
        if problem:
            yield Bad(name, problem)


def _record_problem(cache: Store, name: str, value: dict[str, Any]) -> str | None:
    try:
        return None if read_sealed(cache, name) == value else "does not say what the manifest says"
    except FileNotFoundError:
        return "is missing"
    except Damaged as error:
        return str(error)


def _files(cache: Store, manifest: CacheManifest, deep: bool) -> Iterator[Bad]:
    beside: list[FileRecord] = [*manifest.teacher, *([manifest.vocabulary] if manifest.vocabulary else [])]
    for file in beside:
        problem = file.problem(cache, deep=deep)
        if problem:
            yield Bad(file.name, problem)
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
        with pa.memory_map(str(cache.fetch(shard.payload.name, shard.payload.bytes))) as source, pa.ipc.open_file(source) as reader:
            if reader.num_record_batches != len(shard.batch_rows):
                return f"{reader.num_record_batches} record batches, {len(shard.batch_rows)} were written"
            if not deep or (manifest.vocabulary and not vocabulary):
                return None
            codec = make_codec(manifest.codec, Targets.model_validate(manifest.shard["targets"]), vocabulary)
            for number, rows in enumerate(shard.batch_rows):
                columns = Columns(reader.get_batch(number))
                for row in range(rows):
                    read_rows(codec, columns, row)
    except (pa.ArrowException, OSError, ValueError, IndexError, KeyError) as error:
        return f"cannot be read ({str(error).splitlines()[0]})"
    return None
