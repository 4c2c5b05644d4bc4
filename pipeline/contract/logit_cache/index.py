"""The records of a cache, each a sealed JSON file: the rule it is made by, a sidecar a shard, and the manifest, committed last.

rule.json            written first: identity and settings; a worker by another rule stays out
teacher.json         the files of teacher/, by hash
vocabulary.json      the file vocabulary.arrow, by hash
shards/*.json        a sidecar: its shard counts when the payload it names is there with its size and hash
manifest.json        all of the above in one; made of them and of how the documents fall to shards, so that it can be made again
"""

import base64
import json
import re
from typing import Any, Literal

import numpy as np
import zstandard
from pydantic import ValidationError

from pipeline.contract.errors import CacheError
from pipeline.contract.hashing import hash_file
from pipeline.contract.logit_cache.fidelity import Fidelity
from pipeline.contract.logit_cache.schema import FORMAT_VERSION
from pipeline.contract.manifest.strict import Strict
from pipeline.contract.sealed import SEAL, Damaged, read_sealed, unsealed
from pipeline.contract.store import Store

Split = Literal["train", "validation"]

MANIFEST, RULE, TEACHER, VOCABULARY = "manifest.json", "rule.json", "teacher.json", "vocabulary.json"
VOCABULARY_FILE = "vocabulary.arrow"
_OF_A_SHARD = re.compile(r"(shards|logs)/(?P<shard>(train|validation)-\d{5,})(-[0-9a-f]+\.arrow|\.json)")


class FileRecord(Strict):
    """A file by its content."""

    name: str
    bytes: int
    xxh3_128: str

    @classmethod
    def of(cls, path: Any, name: str | None = None) -> "FileRecord":
        return cls(name=name or path.name, bytes=path.stat().st_size, xxh3_128=hash_file(path))

    def problem(self, store: Store, *, deep: bool = True) -> str | None:
        """What is wrong with the file in `store`, None when nothing is; `deep` reads and hashes it."""
        size = store.size(self.name)
        if size is None:
            return "is missing"
        if size != self.bytes:
            return f"has {size} bytes, {self.bytes} were written"
        try:
            if deep and store.hash(self.name) != self.xxh3_128:
                return f"does not have the hash {self.xxh3_128} it was written with"
        except FileNotFoundError:  # another process has just removed it
            return "is missing"
        return None


class MadeBy(Strict):
    """What a shard was made by: the fingerprint of the rule, and the hash of the vocabulary where its codec needs one.

    A sidecar that strayed in from another cache, or that outlived its vocabulary, is told by it.
    """

    fingerprint: str
    vocabulary: str | None


class FreshForward(Strict):
    """The first documents of a split scored again, one by one and unpadded, against what was cached."""

    rows: int
    top1_equal: int
    logprob_difference_max: float


class BatchRecord(Strict):
    """A record batch: what a reader checks before it decodes. Its message is the payload's bytes [start, end)."""

    documents: int
    start: int
    end: int
    xxh3_64: str


class ShardRecord(Strict):
    """The sidecar of one shard: everything known of it without opening the payload.

    `fidelity` is at temperature 1, `fidelity_at` at each other one that was captured ("2" for 2.0). `lengths` packs the input
    tokens of each document: base64 of zstd of little-endian int32.
    """

    split: Split
    index: int
    made_by: MadeBy
    payload: FileRecord
    documents: int
    tokens: int
    input_tokens: int
    entries: int
    lengths: str
    batches: list[BatchRecord]
    mass_kept_sum: float
    label_logprob_sum: float
    entropy_sum: float
    fidelity: Fidelity
    fidelity_at: dict[str, Fidelity]
    fresh_forward: FreshForward | None
    skipped: dict[str, int]

    @property
    def name(self) -> str:
        return shard_name(self.split, self.index)


def pack_lengths(lengths: list[int]) -> str:
    return base64.b64encode(zstandard.ZstdCompressor(level=9).compress(np.array(lengths, dtype="<i4").tobytes())).decode()


def unpack_lengths(packed: str) -> np.ndarray:
    """[documents] int32."""
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(base64.b64decode(packed)), dtype="<i4")


class SplitRecord(Strict):
    """All shards of a split, in order. `limit` is the `documents.limit` it was captured under."""

    limit: int
    documents: int
    tokens: int
    input_tokens: int
    source_exhausted: bool
    skipped: dict[str, int]
    shards: list[ShardRecord]


class Rule(Strict):
    """What a cache is made by. `codec` is the one in use where the settings say "auto"."""

    format_version: int
    shard: dict[str, Any]
    overrides: dict[str, Any]
    identity: dict[str, Any]
    codec: str


class CacheManifest(Strict):
    """`manifest.json`: the last file written, and the first one read."""

    format_version: int
    codec: str
    shard: dict[str, Any]
    overrides: dict[str, Any]
    identity: dict[str, Any]
    fingerprint: str
    vocab_size: int
    separator_id: int
    teacher: list[FileRecord]
    vocabulary: FileRecord | None
    splits: dict[Split, SplitRecord]

    @property
    def shards(self) -> list[ShardRecord]:
        return [shard for split in self.splits.values() for shard in split.shards]


def shard_name(split: Split, index: int) -> str:
    return f"{split}-{index:05d}"


def sidecar_name(split: Split, index: int) -> str:
    return f"shards/{shard_name(split, index)}.json"


def shard_of(name: str) -> str | None:
    """The shard that a file below shards/ or logs/ belongs to, None for any other file."""
    found = _OF_A_SHARD.fullmatch(name)
    return found and found["shard"]


def read_sidecar(cache: Store, split: Split, index: int) -> ShardRecord | None:
    """The sidecar, None when there is none or it is not one: such a shard is done again."""
    return read_named_sidecar(cache, sidecar_name(split, index))


def read_named_sidecar(cache: Store, name: str) -> ShardRecord | None:
    """The sidecar in the file `name`, None when it is not the one of its shard."""
    try:
        record = ShardRecord.model_validate(read_sealed(cache, name))
    except (FileNotFoundError, Damaged, ValidationError):
        return None
    return record if sidecar_name(record.split, record.index) == name else None


def recorded_files(cache: Store, record: str) -> list[FileRecord]:
    """The files that teacher.json or vocabulary.json names, none where the record is lost or damaged."""
    try:
        value = read_sealed(cache, record)
        return [FileRecord.model_validate(file) for file in value.get("files", [value])]
    except (FileNotFoundError, Damaged, ValidationError):
        return []


def read_rule(cache: Store) -> Rule | None:
    """The rule, None when there is none.

    Raises:
        Damaged: it is not what was written.
    """
    try:
        return Rule.model_validate(read_sealed(cache, RULE))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise Damaged(f"has another form ({error.errors()[0]['msg']})") from None


def has_manifest(cache: Store) -> bool:
    return cache.size(MANIFEST) is not None


def read_manifest(cache: Store) -> CacheManifest:
    """Load the manifest of a finished cache.

    Raises:
        CacheError: when there is none, it is damaged, or its format is another than this version's.
    """
    try:
        return parse_manifest(cache.read_bytes(MANIFEST))
    except FileNotFoundError:
        raise CacheError(f"{cache}: holds no finished cache; make it with 'pipeline cache-teacher --shard {cache.name}'") from None
    except OtherVersion as error:
        raise CacheError(f"{cache}/{MANIFEST}: {error}") from None
    except Damaged as error:
        raise CacheError(
            f"{cache}/{MANIFEST}: {error}; run 'pipeline cache repair --shard {cache.name}' to make it again from the shards"
        ) from None


def find_manifest(cache: Store) -> CacheManifest | None:
    """The manifest, None where there is none or it is damaged, so that it is to be made again.

    Raises:
        CacheError: it is of another format version, and not to be touched.
    """
    try:
        return parse_manifest(cache.read_bytes(MANIFEST))
    except (FileNotFoundError, Damaged):
        return None
    except OtherVersion as error:
        raise CacheError(f"{cache}/{MANIFEST}: {error}") from None


class OtherVersion(ValueError):
    """A manifest of another format version."""


def parse_manifest(data: bytes) -> CacheManifest:
    """The manifest in a file's bytes.

    Raises:
        OtherVersion, Damaged: it is of another format, or not what was written.
    """
    try:
        value = unsealed(data)
    except Damaged as error:
        raise _other_version(data, error) from None
    if value.get("format_version") != FORMAT_VERSION:
        raise OtherVersion(
            f"format_version {value.get('format_version')} is not {FORMAT_VERSION}, the one this version reads; "
            "use the version of this tool that made it, or a newer one"
        )
    try:
        return CacheManifest.model_validate(value)
    except ValidationError as error:
        raise Damaged(f"has another form ({error.errors()[0]['msg']})") from None


def _other_version(data: bytes, error: Damaged) -> ValueError:
    """What bytes without a whole seal are: pre-releases had none, later formats keep it, and a flipped bit makes no other version."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return error
    version = value.get("format_version") if isinstance(value, dict) else None
    if version == 0 and SEAL not in value:
        return OtherVersion(
            f"format_version 0 is of a pre-release and this version reads {FORMAT_VERSION}; "
            "capture it again under another name (--set name=NAME)"
        )
    return error if version in (None, FORMAT_VERSION) else Damaged(f"says format_version {version} and {error}")


def merge_counts(counts: list[dict[str, int]]) -> dict[str, int]:
    """Add up counts by reason."""
    return {reason: sum(part.get(reason, 0) for part in counts) for reason in sorted({reason for part in counts for reason in part})}
