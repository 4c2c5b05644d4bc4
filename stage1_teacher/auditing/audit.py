"""Is a cache what its teacher says? A sample of documents is scored again, from the cached token ids, and compared row by row.

Four sides of each document: live in the capture's kind of batches; live again in other batches (the control: what two passes
of one teacher differ by); the live rows coded and restored (what the codec costs); and the cache. `rule` says how far
the cache may be from live.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from pipeline.contract.errors import CacheError
from pipeline.contract.fingerprint import declared_identity, require_same
from pipeline.contract.logit_cache.fidelity import merge
from pipeline.contract.logit_cache.index import unpack_lengths
from pipeline.contract.logit_cache.reader import LogitCache
from pipeline.contract.logit_cache.statistics import figures
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.auditing.causes import likely_cause
from stage1_teacher.auditing.figures import Figures, bands, cache_figures, control_figures
from stage1_teacher.auditing.rows import OnScored, compare_rows, score_live
from stage1_teacher.auditing.rule import Check, checks
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.engines.open_engine import open_engine
from stage1_teacher.teacher_files import TeacherFiles, find_teacher


@dataclass
class AuditRequest:
    """What to audit, with which teacher.

    Attributes:
        shard: teacher and engine to score with.
        any_teacher: compare although the teacher is another one than the cache names.
    """

    cache: LogitCache
    shard: ShardManifest
    documents: int = 16
    seed: int = 0
    any_teacher: bool = False
    on_scored: OnScored = lambda done, wanted: None


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        documents: the audited documents, by index in the split.
        checks: the criteria, the worst first.
        cause: what probably happened, where a check fails and the rows tell.
        recorded: what the manifest says of the split's rows at their capture.
        control: live against live.
        bands: the cache against live, over all rows ("all") and by the teacher's entropy in nats.
    """

    device: str
    documents: list[int]
    rows: int
    checks: list[Check]
    cause: str | None
    recorded: Figures
    control: Figures
    bands: dict[str, Figures]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    @property
    def problem(self) -> str | None:
        """One clause on the worst row, None when the cache is what the teacher says."""
        if self.ok:
            return None
        return str(self.checks[0]) + (f" ({self.cause})" if self.cause else "")

    def as_json(self) -> dict[str, Any]:
        shown = [{**asdict(check), "ok": check.ok} for check in self.checks]
        head = {"ok": self.ok, "problem": self.problem, "device": self.device, "documents": self.documents, "rows": self.rows}
        return {**head, "checks": shown, "recorded": self.recorded, "control": self.control, **self.bands["all"], "bands": self.bands}


def audit(request: AuditRequest) -> Audit:
    """Score a sample again and judge.

    Raises:
        CacheError: the teacher is another one than the cache's, a payload cannot be read, or there is no row to audit.
        TeacherError: the teacher is missing, or cannot score the cached tokens.
    """
    files = find_teacher(request.shard.teacher)
    if not request.any_teacher:
        require_teacher(request.cache, request.shard, files)
    indices = spread_sample([unpack_lengths(shard.lengths) for shard in request.cache.record.shards], request.documents, request.seed)
    if not len(indices):
        raise CacheError(f"{request.cache.store}: no document of split {request.cache.split!r} has a row; audit another split")
    return compare(open_engine(files, request.shard), request.cache, indices.tolist(), request.on_scored)


def require_teacher(cache: LogitCache, shard: ShardManifest, files: TeacherFiles) -> None:
    """Refuse a teacher that is not the one that the cache names, by hash.

    Raises:
        CacheError: naming the field.
    """
    declared = {key: value for key, value in declared_identity(shard).items() if key.startswith("teacher.")}
    move = "audit it with its own (--set teacher.model=FOLDER), or add --any-teacher to compare all the same"
    require_same(cache.manifest.identity, declared | files.identity(), str(cache.store), move)


def spread_sample(lengths: Sequence[np.ndarray], count: int, seed: int) -> np.ndarray:
    """Random documents that have a row, as evenly from all shards as can be, in rising order; `lengths` are a shard's input tokens."""
    random = np.random.default_rng(seed)
    shard_of = np.repeat(np.arange(len(lengths)), [len(part) for part in lengths])
    order = random.permutation(len(shard_of))
    order = order[np.concatenate(lengths)[order] > 1]
    by_shard = order[np.argsort(shard_of[order], kind="stable")]
    _, starts, sizes = np.unique(shard_of[by_shard], return_index=True, return_counts=True)
    turn = np.arange(len(by_shard)) - np.repeat(starts, sizes)
    return np.sort(by_shard[np.lexsort((random.permutation(len(turn)), turn))[:count]])


def compare(engine: TeacherEngine, cache: LogitCache, indices: Sequence[int], on_scored: OnScored = lambda done, wanted: None) -> Audit:
    """Audit these documents with this engine.

    Raises:
        CacheError: its head has another number of rows than the cache's teacher.
    """
    if engine.vocab_size != cache.manifest.vocab_size:
        raise CacheError(
            f"{cache.store}: is of a teacher of {cache.manifest.vocab_size} ids, this one gives mass to {engine.vocab_size}; "
            "rows of different vocabularies cannot be compared, audit it with its own teacher"
        )
    live = score_live(engine, cache, indices)
    rows = compare_rows(engine, cache, indices, live, on_scored)
    fidelity = merge([shard.fidelity for shard in cache.record.shards])
    recorded = figures(fidelity.kind, fidelity.whole)
    found = checks(rows, cache.targets.c if cache.targets.mode == "sampled" else None, recorded["kl_max"])
    return Audit(
        device=engine.device_name,
        documents=list(indices),
        rows=len(rows.row),
        checks=found,
        cause=None if all(check.ok for check in found) else likely_cause(live, [cache[index] for index in indices]),
        recorded=recorded,
        control=control_figures(rows),
        bands={name: cache_figures(rows, wanted) for name, wanted in bands(rows.live["entropy"])},
    )
