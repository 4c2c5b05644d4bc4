"""One worker: goes through the shards in order and makes those that are neither there nor in another worker's hands."""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.fingerprint import fingerprint
from pipeline.contract.logit_cache.codec import Codec, make_codec, needs_vocabulary
from pipeline.contract.logit_cache.index import FreshForward, MadeBy, Rule, ShardRecord, Split, shard_name
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.writer import finished_shard, write_shard
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.process import process_mark
from pipeline.contract.store import Store
from pipeline.executors.base import Executor
from stage1_teacher.calibration import CalibrationInputs, ensure_vocabulary, make_vocabulary, recorded_vocabulary
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.engines.base import EngineDied, ScoringError, TeacherEngine, died_of
from stage1_teacher.engines.open_engine import open_engine
from stage1_teacher.leases import Leases
from stage1_teacher.shard_plan import ShardPlan, ShardUnit
from stage1_teacher.teacher_files import find_teacher
from stage1_teacher.teacher_folder import ensure_teacher_folder
from stage1_teacher.tokenization import DocumentTokenizer

RESCORED_DOCUMENTS = 4
WAIT_SECONDS = 0.5

OnShard = Callable[[ShardRecord, bool, float], None]
"""Called with a shard's record, whether it was there already, and the seconds spent on it."""


@dataclass(frozen=True)
class Begun:
    """A shard that a worker is about to score: should its process die, this is what it died at.

    Attributes:
        documents: the first and the last of its split.
        origins: where these two were read.
    """

    name: str
    documents: tuple[int, int]
    origins: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.name} (documents {self.documents[0]} to {self.documents[1]} of its split: {self.origins[0]} to {self.origins[1]})"


@dataclass
class CaptureRequest:
    """What to capture and where.

    Attributes:
        overrides: the dotted `--set` values that are in `shard` already; recorded, so that training can name the same shard.
        workers: processes that work at once; more machines may run the same command.
        executor: where they work; None is this process for one worker, this machine for more.
        on_shard: see `OnShard`; a shard that another machine makes is never reported.
        on_begin: called with a shard that is about to be scored.
        on_death: called with a line about a worker that died, and what is done about it.
    """

    shard: ShardManifest
    cache: Store
    splits: Sequence[Split]
    overrides: dict[str, Any] = field(default_factory=dict)
    workers: int = 1
    executor: Executor | None = None
    on_shard: OnShard = lambda record, reused, seconds: None
    on_begin: Callable[[Begun], None] = lambda begun: None
    on_death: Callable[[str], None] = lambda line: None


@dataclass(frozen=True)
class Dealt:
    """How the documents fall to shards: documents of each shard by split, and what was skipped after the last of them."""

    shards: dict[Split, list[int]]
    trailing: dict[str, int]


@dataclass(frozen=True)
class _Place:
    """A shard without its documents: enough to look for it."""

    split: Split
    index: int
    documents: int

    @property
    def name(self) -> str:
        return shard_name(self.split, self.index)


class Worker:
    """One process's work; the teacher is loaded when the first thing that is not there asks for it.

    `shunned` are shards that an earlier process in this one's place died at: they are left to others for a while.
    """

    def __init__(self, request: CaptureRequest, rule: Rule, shunned: Collection[str] = ()) -> None:
        shard = request.shard
        self.request, self.rule, self.cache = request, rule, request.cache
        self.files, self.source = find_teacher(shard.teacher), open_documents(shard.documents)
        self.tokenizer = DocumentTokenizer(self.files, shard.documents)
        self.leases = Leases(request.cache)
        self._shunned, self._shunned_until = shunned, time.monotonic() + self.leases.patience
        self._made_by: MadeBy
        self._engine: TeacherEngine | None = None
        self._in_hand: Begun | None = None
        self._reported: set[str] = set()

    def run(self) -> Dealt:
        """Work until every shard is there, made by whomever.

        Raises:
            TeacherError, DocumentError: something to read is missing or broken.
            EngineDied: the engine can score nothing any more, and neither can this process.
            PipelineError: the disk is full.
        """
        try:
            codec = self.codec()
            while True:
                dealt, missing = self._pass(codec)
                if self._all_come(missing):
                    return dealt
        except Exception as error:
            if (cause := died_of(error)) is None:
                raise
            raise EngineDied(
                f"{self._in_hand or 'before the first shard'}: the engine died of {cause}; run the same command again"
            ) from error
        finally:
            self.leases.close()

    def engine(self) -> TeacherEngine:
        if self._engine is None:
            self._engine = open_engine(self.files, self.request.shard)
        return self._engine

    def codec(self) -> Codec:
        """The codec of the cache; teacher folder and vocabulary are there afterwards."""
        vocab_size = ensure_teacher_folder(self.cache, self.leases, self.engine, self.tokenizer.tokenizer)
        inputs = CalibrationInputs(self.source, self.tokenizer, vocab_size, self.engine)
        make = partial(make_vocabulary, self.request.shard, self.rule.codec, inputs)
        vocabulary = ensure_vocabulary(self.cache, self.leases, self.rule.codec, make)
        self._made_by = made_by(self.cache, self.rule)
        return make_codec(self.rule.codec, self.request.shard.targets, vocabulary)

    def _pass(self, codec: Codec) -> tuple[Dealt, list[_Place]]:
        """Go through all shards once and make what is free: how documents are dealt, and what is in the hands of other workers."""
        shard, missing = self.request.shard, []
        plan = ShardPlan(self.source, shard.documents, shard.cache.documents_per_shard, self.request.splits)
        dealt: dict[Split, list[int]] = {split: [] for split in self.request.splits}
        for unit in plan:
            dealt[unit.split].append(len(unit.texts))
            place = _Place(unit.split, unit.index, len(unit.texts))
            if self._is_there(place):
                continue
            if self._take(place.name):
                self._make(unit, codec)
            else:
                missing.append(place)
        return Dealt(dealt, dict(sorted(plan.trailing.items()))), missing

    def _all_come(self, missing: list[_Place]) -> bool:
        """Wait for shards in other hands; whether all have come. One that its holder has left is held now, to be made.

        Only the records are looked at: to read all documents again, just to wait, would be long.
        """
        while missing := [place for place in missing if not self._is_there(place)]:
            if any(self._take(place.name) for place in missing):
                return False
            time.sleep(WAIT_SECONDS)
        return True

    def _take(self, name: str) -> bool:
        return (name not in self._shunned or time.monotonic() > self._shunned_until) and self.leases.take(name)

    def _is_there(self, place: _Place) -> bool:
        """Whether the shard is done, by whomever; it is reported then."""
        done = finished_shard(self.cache, place.split, place.index, place.documents, self._made_by)
        if done:
            self._report(done, True, 0.0)
        return done is not None

    def _make(self, unit: ShardUnit, codec: Codec) -> None:
        """Make a shard that this worker holds, unless another has just finished it."""
        try:
            if self._is_there(_Place(unit.split, unit.index, len(unit.texts))):
                return
            _ = self.engine()  # loading is not part of the shard's time, nor is dying of it the shard's fault
            self._in_hand = self._begun(unit)
            self.request.on_begin(self._in_hand)
            started = time.monotonic()
            record = self._score(unit, codec)
            seconds = time.monotonic() - started
            log = {"seconds": seconds, "tokens_per_second": record.tokens / seconds, "worker": process_mark()}
            self.cache.write_json(f"logs/{record.name}.json", log)
        finally:
            self.leases.drop(shard_name(unit.split, unit.index))
        self._report(record, False, seconds)

    def _begun(self, unit: ShardUnit) -> Begun:
        first = unit.index * self.request.shard.cache.documents_per_shard
        return Begun(shard_name(unit.split, unit.index), (first, first + len(unit.texts) - 1), (unit.origins[0], unit.origins[-1]))

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
            made_by=self._made_by,
            first_document=unit.index * layout.documents_per_shard,
            tokens_per_batch=layout.tokens_per_batch,
            skipped=dict(sorted(unit.skipped.items())),
            fresh_forward=fresh_forward(self.engine(), documents[:RESCORED_DOCUMENTS]) if unit.index == 0 else None,
        )

    def _report(self, record: ShardRecord, reused: bool, seconds: float) -> None:
        if record.name not in self._reported:
            self._reported.add(record.name)
            self.request.on_shard(record, reused, seconds)


def made_by(cache: Store, rule: Rule) -> MadeBy:
    """What shards of this rule are made by, once the cache has its vocabulary."""
    vocabulary = recorded_vocabulary(cache) if needs_vocabulary(rule.codec) else None
    return MadeBy(fingerprint=fingerprint(rule.identity), vocabulary=vocabulary and vocabulary.xxh3_128)


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
