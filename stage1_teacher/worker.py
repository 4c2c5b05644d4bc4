"""One worker: goes through the shards in order and makes those that are neither there nor in another worker's hands."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.codec import Codec, make_codec
from pipeline.contract.logit_cache.index import FreshForward, Rule, ShardRecord, Split, shard_name
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.writer import finished_shard, write_shard
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.process import process_mark
from pipeline.contract.store import Store
from stage1_teacher.calibration import CalibrationInputs, ensure_vocabulary, make_vocabulary
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.engines.base import ScoringError, TeacherEngine
from stage1_teacher.leases import Leases
from stage1_teacher.shard_plan import ShardPlan, ShardUnit
from stage1_teacher.teacher_files import find_teacher
from stage1_teacher.teacher_folder import ensure_teacher_folder
from stage1_teacher.tokenization import DocumentTokenizer

RESCORED_DOCUMENTS = 4
WAIT_SECONDS = 0.5

OnShard = Callable[[ShardRecord, bool, float], None]
"""Called with a shard's record, whether it was there already, and the seconds spent on it."""


@dataclass
class CaptureRequest:
    """What to capture and where.

    Attributes:
        overrides: the dotted `--set` values that are in `shard` already; recorded, so that training can name the same shard.
        workers: processes on this machine; more machines may run the same command.
        on_shard: see `OnShard`; a shard that another machine makes is never reported.
    """

    shard: ShardManifest
    cache: Store
    splits: Sequence[Split]
    overrides: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    on_shard: OnShard = lambda record, reused, seconds: None


@dataclass(frozen=True)
class Dealt:
    """How the documents fall to shards: documents of each shard by split, and what was skipped after the last of them."""

    shards: dict[Split, list[int]]
    trailing: dict[str, int]


class Worker:
    """One process's work; the teacher is loaded when the first thing that is not there asks for it."""

    def __init__(self, request: CaptureRequest, rule: Rule) -> None:
        shard = request.shard
        self.request, self.rule, self.cache = request, rule, request.cache
        self.files, self.source = find_teacher(shard.teacher), open_documents(shard.documents)
        self.tokenizer = DocumentTokenizer(self.files, shard.documents)
        self.leases = Leases(request.cache)
        self._engine: TeacherEngine | None = None
        self._reported: set[str] = set()

    def run(self) -> Dealt:
        """Work until every shard is there, made by whomever.

        Raises:
            TeacherError, DocumentError: something to read is missing or broken.
            PipelineError: the disk is full.
        """
        try:
            codec = self.codec()
            while True:
                dealt, missing, made = self._pass(codec)
                if not missing:
                    return dealt
                if not made:
                    time.sleep(WAIT_SECONDS)
        finally:
            self.leases.close()

    def engine(self) -> TeacherEngine:
        if self._engine is None:
            from stage1_teacher.engines.transformers_engine import TransformersEngine

            self._engine = TransformersEngine(self.files, self.request.shard)
        return self._engine

    def codec(self) -> Codec:
        """The codec of the cache; teacher folder and vocabulary are there afterwards."""
        vocab_size = ensure_teacher_folder(self.cache, self.leases, self.engine, self.tokenizer.tokenizer)
        inputs = CalibrationInputs(self.source, self.tokenizer, vocab_size, self.engine)
        make = partial(make_vocabulary, self.request.shard, self.rule.codec, inputs)
        vocabulary = ensure_vocabulary(self.cache, self.leases, self.rule.codec, make)
        return make_codec(self.rule.codec, self.request.shard.targets, vocabulary)

    def _pass(self, codec: Codec) -> tuple[Dealt, int, int]:
        """Go through all shards once: how documents are dealt, how many shards are still missing, how many were made here."""
        shard, missing, made = self.request.shard, 0, 0
        plan = ShardPlan(self.source, shard.documents, shard.cache.documents_per_shard, self.request.splits)
        dealt: dict[Split, list[int]] = {split: [] for split in self.request.splits}
        for unit in plan:
            dealt[unit.split].append(len(unit.texts))
            done = self._finished(unit)
            if done:
                self._report(done, True, 0.0)
            elif self.leases.take(shard_name(unit.split, unit.index)):
                made += self._make(unit, codec)
            else:
                missing += 1
        return Dealt(dealt, dict(sorted(plan.trailing.items()))), missing, made

    def _finished(self, unit: ShardUnit) -> ShardRecord | None:
        return finished_shard(self.cache, unit.split, unit.index, len(unit.texts))

    def _make(self, unit: ShardUnit, codec: Codec) -> int:
        """Make a shard that this worker holds, unless another has just finished it; returns how many were made."""
        try:
            if self._finished(unit):
                return 0
            _ = self.engine()  # loading is not part of the shard's time
            started = time.monotonic()
            record = self._score(unit, codec)
            seconds = time.monotonic() - started
            log = {"seconds": seconds, "tokens_per_second": record.tokens / seconds, "worker": process_mark()}
            self.cache.write_json(f"logs/{record.name}.json", log)
        finally:
            self.leases.drop(shard_name(unit.split, unit.index))
        self._report(record, False, seconds)
        return 1

    def _score(self, unit: ShardUnit, codec: Codec) -> ShardRecord:
        layout = self.request.shard.cache
        try:
            documents = self.engine().score(self.tokenizer.encode(unit.texts))
        except ScoringError as error:
            raise TeacherError(f"{unit.origins[error.position]}: {error.problem}") from None
        return write_shard(
            self.cache,
            codec,
            unit.split,
            unit.index,
            documents,
            first_document=unit.index * layout.documents_per_shard,
            tokens_per_batch=layout.tokens_per_batch,
            skipped=dict(sorted(unit.skipped.items())),
            fresh_forward=fresh_forward(self.engine(), documents[:RESCORED_DOCUMENTS]) if unit.index == 0 else None,
        )

    def _report(self, record: ShardRecord, reused: bool, seconds: float) -> None:
        if record.name not in self._reported:
            self._reported.add(record.name)
            self.request.on_shard(record, reused, seconds)


def fresh_forward(engine: TeacherEngine, documents: Sequence[CachedDocument]) -> FreshForward:
    """Score documents again, each alone and so without padding, and compare row by row."""
    rows = equal = 0
    difference = 0.0
    for cached in documents:
        (again,) = engine.score([cached.token_ids])
        both = (cached.counts > 0) & (again.counts > 0)
        starts, starts_again = _starts(cached)[both], _starts(again)[both]
        rows += int(both.sum())
        equal += int((cached.ids[starts] == again.ids[starts_again]).sum())
        difference = max(difference, float(np.abs(cached.label_logprob - again.label_logprob).max(initial=0.0)))
    return FreshForward(rows=rows, top1_equal=equal, logprob_difference_max=difference)


def _starts(document: CachedDocument) -> np.ndarray:
    """[T-1] where each row's most probable entry is; an engine gives it first."""
    return np.cumsum(document.counts, dtype=np.int64) - document.counts
