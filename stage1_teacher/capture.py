"""Stage one: documents in, a published cache out. Run it again and it does only what is not there yet."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pipeline.contract.atomic_io import sweep_temporaries
from pipeline.contract.fingerprint import require_same
from pipeline.contract.logit_cache.index import (
    CacheManifest,
    Rule,
    ShardRecord,
    Split,
    find_manifest,
    has_manifest,
    read_named_sidecar,
    shard_of,
)
from pipeline.contract.store import Store
from stage1_teacher.calibration import choose_codec
from stage1_teacher.commit import commit
from stage1_teacher.leases import Leases, sweep_leases
from stage1_teacher.lost_records import lost_records, restore
from stage1_teacher.rule import Inputs, claim, find_inputs, next_move, present_identity, recorded_rule
from stage1_teacher.tokenization import DocumentTokenizer
from stage1_teacher.worker import CaptureRequest, Dealt, Worker
from stage1_teacher.workers import run_workers


@dataclass
class CaptureResult:
    """What a capture did. `seconds` and `tokens_scored` count scoring and writing of new shards, not set-up."""

    manifest: CacheManifest
    shards_written: int = 0
    shards_reused: int = 0
    tokens_scored: int = 0
    seconds: float = 0.0


@dataclass
class _Tally:
    """Counts what workers report, and passes it on."""

    request: CaptureRequest
    result: dict[str, float] = field(default_factory=lambda: {"shards_written": 0, "shards_reused": 0, "tokens_scored": 0, "seconds": 0.0})

    def __call__(self, record: ShardRecord, reused: bool, seconds: float) -> None:
        counts = {"shards_reused": 1} if reused else {"shards_written": 1, "tokens_scored": record.tokens, "seconds": seconds}
        for name, count in counts.items():
            self.result[name] += count
        self.request.on_shard(record, reused, seconds)


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
        return CaptureResult(whole, shards_reused=len(whole.shards))
    finished = find_manifest(request.cache)
    restore(request.cache, lost_records(request.cache, finished) if finished else {})
    earlier = recorded_rule(request.cache)
    inputs = find_inputs(request.shard, earlier.identity if earlier else None)
    rule = claim(request.cache, request.shard, request.overrides, inputs.identity, _codec(request, inputs, earlier))
    _clear_what_the_dead_left(request.cache)
    _drop_broken_shards(request.cache, request.splits)
    tally = _Tally(request)
    dealt = _work(replace(request, on_shard=tally), rule)
    _clear_what_the_dead_left(request.cache)  # of workers that were killed meanwhile
    separator_id = DocumentTokenizer(inputs.teacher, request.shard.documents).separator_id
    return CaptureResult(commit(request.cache, rule, dealt, separator_id), **tally.result)  # type: ignore[arg-type]


def _work(request: CaptureRequest, rule: Rule) -> Dealt:
    return Worker(request, rule).run() if request.workers == 1 and request.executor is None else run_workers(request, rule)


def _codec(request: CaptureRequest, inputs: Inputs, earlier: Rule | None) -> str:
    """The one that the cache has; "auto" is decided once, by the size of the first capture."""
    asked = request.shard.cache.codec
    if asked != "auto" or earlier is not None:
        return asked if asked != "auto" or earlier is None else earlier.codec
    tokenizer = DocumentTokenizer(inputs.teacher, request.shard.documents)
    return choose_codec(request.shard, inputs.documents, tokenizer)


def _clear_what_the_dead_left(cache: Store) -> None:
    """Leases and halves of killed workers of this machine."""
    sweep_leases(cache)
    for folder in ("", "shards", "teacher", "leases", "logs") if cache.is_local else ():
        sweep_temporaries(cache.path / folder)


def _drop_broken_shards(cache: Store, splits: Sequence[Split]) -> None:
    """Remove sidecars whose payload is not what they say, so that it is made again.

    A remote payload was verified when it was put, and is not read again here; `verify --deep` does.
    """
    leases = Leases(cache)
    for name in cache.names("shards") if cache.is_local else ():
        unit = shard_of(name)
        if not (unit and unit.startswith(tuple(splits)) and name.endswith(".json")) or _holds(cache, name):
            continue
        if leases.take(unit):  # else another worker is mending it
            if not _holds(cache, name):
                cache.remove(name)
            leases.drop(unit)
    leases.close()


def _holds(cache: Store, sidecar: str) -> bool:
    record = read_named_sidecar(cache, sidecar)
    return record is not None and not record.payload.problem(cache)


def never_smaller(request: CaptureRequest) -> CaptureRequest:
    """The request, its limit raised to what the cache holds already: a smaller range never shrinks a cache.

    Raises:
        CacheError: the cache is of another format version.
    """
    limit = _captured_limit(request.cache)
    if limit <= request.shard.documents.limit:
        return request
    documents = request.shard.documents.model_copy(update={"limit": limit})
    shard = request.shard.model_copy(update={"documents": documents})
    return replace(request, shard=shard, overrides=request.overrides | {"documents.limit": limit})


def _captured_limit(cache: Store) -> int:
    """The `documents.limit` that a finished cache was captured under; its rule says it where the manifest is damaged."""
    manifest = find_manifest(cache)
    if manifest:
        return max(split.limit for split in manifest.splits.values())
    rule = recorded_rule(cache) if has_manifest(cache) else None
    return int(rule.shard["documents"]["limit"]) if rule else 0


def finished_manifest(request: CaptureRequest, *, deep: bool = True) -> CacheManifest | None:
    """The manifest, if the cache is whole for this request and made by its rule.

    `deep` hashes every payload and document file and reads every record; behind a URL no payload nor sidecar, of which there may
    be thousands: `verify` does.

    Raises:
        CacheError: the cache is whole but made by another rule, or of another format version.
    """
    manifest = find_manifest(request.cache)
    if manifest is None:
        return None
    here = present_identity(request.shard, manifest.identity, read_documents=deep)
    require_same(manifest.identity, here, str(request.cache), next_move(request.shard))
    captured = [manifest.splits.get(split) for split in request.splits]
    if not all(split and split.limit >= request.shard.documents.limit for split in captured):
        return None
    payloads = [shard.payload for shard in manifest.shards if shard.split in request.splits]
    files = [*manifest.teacher, *([manifest.vocabulary] if manifest.vocabulary else []), *payloads]
    if any(file.problem(request.cache, deep=deep and request.cache.is_local) for file in files):
        return None
    return None if deep and lost_records(request.cache, manifest, sidecars=request.cache.is_local) else manifest
