"""Stage one's loop: documents in, a published cache out. Run it again and it does only what is not there yet."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.contract.atomic_io import only_writer, write_json
from pipeline.contract.errors import CacheError, DocumentError, TeacherError
from pipeline.contract.fingerprint import fingerprint, require_same
from pipeline.contract.logit_cache.codec import CODEC
from pipeline.contract.logit_cache.index import (
    CacheManifest,
    FreshForward,
    ShardRecord,
    Split,
    SplitRecord,
    merge_counts,
    read_manifest,
    shard_name,
)
from pipeline.contract.logit_cache.schema import FORMAT_VERSION, CachedDocument
from pipeline.contract.logit_cache.writer import finished_shard, write_shard
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.engines.base import ScoringError, TeacherEngine
from stage1_teacher.rule import Inputs, claim_folder, find_inputs, next_move, present_identity
from stage1_teacher.shard_plan import ShardUnit, shard_units
from stage1_teacher.teacher_folder import publish_teacher_folder, teacher_folder_records
from stage1_teacher.tokenization import DocumentTokenizer

RESCORED_DOCUMENTS = 4


@dataclass
class CaptureRequest:
    """What to capture and where.

    Attributes:
        overrides: the dotted `--set` values that are in `shard` already; recorded, so that training can name the same shard.
        on_shard: called after each shard with its record, whether it was reused, and the seconds spent on it.
    """

    shard: ShardManifest
    cache: Path
    splits: Sequence[Split]
    overrides: dict[str, Any] = field(default_factory=dict)
    on_shard: Callable[[ShardRecord, bool, float], None] = lambda record, reused, seconds: None


@dataclass
class CaptureResult:
    """What a capture did. `seconds` and `tokens_scored` count scoring and writing of new shards, not set-up."""

    manifest: CacheManifest
    shards_written: int = 0
    shards_reused: int = 0
    tokens_scored: int = 0
    seconds: float = 0.0


def capture(request: CaptureRequest) -> CaptureResult:
    """Make the cache complete for the request; resumes whatever is there.

    Raises:
        TeacherError, DocumentError: something to read is missing or broken.
        CacheError: the folder holds a cache made by another rule.
        PipelineError: the disk is full.
    """
    request = never_smaller(request)
    whole = finished_manifest(request)
    if whole is not None:
        return CaptureResult(whole, shards_reused=sum(len(split.shards) for split in whole.splits.values()))
    inputs = find_inputs(request.shard)
    with only_writer(request.cache):
        claim_folder(request.cache, inputs.identity, next_move(request.shard))
        return _Capture(request, inputs).run()


def never_smaller(request: CaptureRequest) -> CaptureRequest:
    """The request, its limit raised to what the cache holds already: a smaller range never shrinks a cache."""
    try:
        limit = max(split.limit for split in read_manifest(request.cache).splits.values())
    except CacheError:
        return request
    if limit <= request.shard.documents.limit:
        return request
    documents = request.shard.documents.model_copy(update={"limit": limit})
    shard = request.shard.model_copy(update={"documents": documents})
    return replace(request, shard=shard, overrides=request.overrides | {"documents.limit": limit})


def finished_manifest(request: CaptureRequest, *, deep: bool = True) -> CacheManifest | None:
    """The manifest, if the cache is whole for this request and made by its rule; `deep` hashes every payload and document file.

    Raises:
        CacheError: the cache is whole but made by another rule.
    """
    try:
        manifest = read_manifest(request.cache)
    except CacheError:
        return None
    here = present_identity(request.shard, manifest.identity, read_documents=deep)
    require_same(manifest.identity, here, str(request.cache), next_move(request.shard))
    captured = [manifest.splits.get(split) for split in request.splits]
    if not all(split and split.limit >= request.shard.documents.limit for split in captured):
        return None
    folders = [(request.cache / "teacher", manifest.teacher)]
    folders += [(request.cache / "shards", [shard.payload for shard in split.shards]) for split in manifest.splits.values()]
    damaged = any(file.problem(folder, deep=deep) for folder, files in folders for file in files)
    return None if damaged else manifest


class _Capture:
    """One call's work; the teacher is loaded when the first shard that is not there asks for it."""

    def __init__(self, request: CaptureRequest, inputs: Inputs) -> None:
        self.request, self.files, self.source, self.identity = request, inputs.teacher, inputs.documents, inputs.identity
        self.tokenizer = DocumentTokenizer(inputs.teacher, request.shard.documents)
        self.loaded: TeacherEngine | None = None
        self.seconds, self.tokens, self.written, self.reused = 0.0, 0, 0, 0

    def run(self) -> CaptureResult:
        teacher = teacher_folder_records(self.request.cache) or publish_teacher_folder(
            self.request.cache, self.engine, self.tokenizer.tokenizer
        )
        shard = self.request.shard
        records: dict[Split, list[ShardRecord]] = {split: [] for split in self.request.splits}
        for unit in shard_units(self.source, shard.documents, shard.cache.documents_per_shard, self.request.splits):
            records[unit.split].append(self._shard(unit))
        if not any(records.values()):
            raise DocumentError(f"documents.files={shard.documents.files}: no document is left after skipping; give files that hold text")
        if not any(record.tokens for split in records.values() for record in split):
            raise DocumentError(f"documents.files={shard.documents.files}: no document holds any token; check the tokenizer")
        manifest = self._manifest(records, teacher)
        write_json(self.request.cache / "manifest.json", manifest.model_dump())
        return CaptureResult(manifest, self.written, self.reused, self.tokens, self.seconds)

    @property
    def engine(self) -> TeacherEngine:
        if self.loaded is None:
            from stage1_teacher.engines.transformers_engine import TransformersEngine

            self.loaded = TransformersEngine(self.files, self.request.shard)
        return self.loaded

    def _shard(self, unit: ShardUnit) -> ShardRecord:
        done = finished_shard(self.request.cache, unit.split, unit.index, len(unit.texts))
        if not done:
            _ = self.engine  # loading is not part of the shard's time
        started = time.monotonic()
        record = done or self._score(unit)
        seconds = time.monotonic() - started
        if done:
            self.reused += 1
        else:
            self.written, self.seconds, self.tokens = self.written + 1, self.seconds + seconds, self.tokens + record.tokens
            log = {"seconds": seconds, "tokens_per_second": record.tokens / seconds}
            write_json(self.request.cache / "shards" / f"{shard_name(unit.split, unit.index)}.log.json", log)
        self.request.on_shard(record, done is not None, seconds)
        return record

    def _score(self, unit: ShardUnit) -> ShardRecord:
        layout = self.request.shard.cache
        try:
            documents = self.engine.score(self.tokenizer.encode(unit.texts))
        except ScoringError as error:
            raise TeacherError(f"{unit.origins[error.position]}: {error.problem}") from None
        return write_shard(
            self.request.cache,
            unit.split,
            unit.index,
            documents,
            first_document=unit.index * layout.documents_per_shard,
            tokens_per_batch=layout.tokens_per_batch,
            skipped=dict(sorted(unit.skipped.items())),
            fresh_forward=fresh_forward(self.engine, documents[:RESCORED_DOCUMENTS]) if unit.index == 0 else None,
        )

    def _manifest(self, records: dict[Split, list[ShardRecord]], teacher: list) -> CacheManifest:
        request = self.request
        made = {split: _split_record(shards, split, request.shard) for split, shards in records.items() if shards}
        return CacheManifest(
            format_version=FORMAT_VERSION,
            codec=CODEC,
            shard=request.shard.model_dump(),
            overrides=request.overrides,
            identity=self.identity,
            fingerprint=fingerprint(self.identity),
            vocab_size=_vocab_size(request.cache),
            separator_id=self.tokenizer.separator_id,
            teacher=teacher,
            splits=self._earlier_splits() | made,
        )

    def _earlier_splits(self) -> dict[Split, SplitRecord]:
        """Splits captured by an earlier call stay in the manifest as they are."""
        try:
            return dict(read_manifest(self.request.cache).splits)
        except CacheError:
            return {}


def _vocab_size(cache: Path) -> int:
    from safetensors import safe_open

    with safe_open(cache / "teacher" / "interface.safetensors", "np") as tensors:
        return int(tensors.get_slice("embed_tokens.weight").get_shape()[0])


def _split_record(shards: list[ShardRecord], split: Split, shard: ShardManifest) -> SplitRecord:
    documents = sum(record.documents for record in shards)
    return SplitRecord(
        limit=shard.documents.limit,
        documents=documents,
        tokens=sum(record.tokens for record in shards),
        input_tokens=sum(record.input_tokens for record in shards),
        source_exhausted=split == "train" and documents < shard.documents.limit,
        skipped=merge_counts([record.skipped for record in shards]),
        shards=shards,
    )


def fresh_forward(engine: TeacherEngine, documents: Sequence[CachedDocument]) -> FreshForward:
    """Score documents again, each alone and so without padding, and compare row by row."""
    rows = equal = 0
    difference = 0.0
    for cached in documents:
        (again,) = engine.score([cached.token_ids])
        starts = np.cumsum(cached.counts, dtype=np.int64) - cached.counts
        rows += cached.tokens
        equal += int((cached.ids[starts] == again.ids[starts]).sum())
        difference = max(difference, float(np.abs(cached.label_logprob - again.label_logprob).max(initial=0.0)))
    return FreshForward(rows=rows, top1_equal=equal, logprob_difference_max=difference)
