"""A shard's capture as it stands: sidecars say what is done, leases what is in hand, logs how fast it went.

waiting   nothing is there
running   a worker holds something, or lives between two shards
stopped   begun, and nobody works on it as far as can be told here
done      the manifest is there
"""

import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal

from pipeline.contract.errors import CacheError, ManifestError, PipelineError
from pipeline.contract.logit_cache.index import (
    RULE,
    Rule,
    ShardRecord,
    find_manifest,
    has_manifest,
    read_named_sidecar,
    read_rule,
    shard_of,
)
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.manifest.strict import parse
from pipeline.contract.process import is_alive, is_gone
from pipeline.contract.sealed import Damaged
from pipeline.contract.store import Store

LEASES = "leases"
QUIET_SECONDS = 120.0
"""A lease is rewritten every 15 seconds by default; unchanged for so long, by this process's clock, nobody keeps it."""

SETTLE_SECONDS = 5.0
"""Workers hold nothing for a moment between two things: so long a capture counts as running after one was seen."""

REMOTE_SECONDS = 30.0
"""Behind a URL every look lists a bucket: so long one look serves."""

CaptureState = Literal["waiting", "running", "stopped", "done"]


@dataclass(frozen=True)
class CaptureView:
    """What is shown of a capture.

    Attributes:
        shards: done and to come; an upper bound until the documents are read to the limit. None where no settings are known.
        in_hand: what workers hold at the moment.
        workers: how many hold something, or live between two shards.
        tokens_per_second: target tokens, each worker's newest shard, added up over workers.
        problem: why the cache cannot be looked at; the rest is then as of the look before.
    """

    shard: str
    state: CaptureState
    shards_done: int
    shards: int | None
    documents: int
    tokens: int
    in_hand: tuple[str, ...]
    workers: int
    tokens_per_second: float | None
    seconds_left: float | None
    problem: str = ""


class CaptureWatch:
    """One cache, looked at again and again. `planned` is what would be captured where nothing says what is."""

    def __init__(self, cache: Store, planned: ShardManifest | None = None) -> None:
        self._cache, self._planned = cache, planned
        self._sidecars: dict[str, ShardRecord] = {}
        self._beats: dict[str, tuple[bytes, float]] = {}
        self._finished: CaptureView | None = None
        self._busy = -math.inf
        self._seen, self._view = -math.inf, CaptureView(cache.name, "waiting", 0, None, 0, 0, (), 0, None, None)

    def look(self) -> CaptureView:
        """The capture now."""
        now = time.monotonic()
        if self._cache.is_local or now - self._seen > REMOTE_SECONDS:
            self._seen = now
            try:
                self._view = self._look()
            except (PipelineError, OSError) as error:  # a bucket that is away comes back
                self._view = replace(self._view, problem=str(error))
        return self._view

    def _look(self) -> CaptureView:
        holders = self._holders()
        if not holders and has_manifest(self._cache):
            self._finished = self._finished or self._whole()
            if self._finished is not None:
                return self._finished
        self._finished = None
        logs = self._read_sidecars()
        workers = set(holders.values()) | {log["worker"] for log in logs.values() if is_alive(log["worker"])}
        if workers:
            self._busy = time.monotonic()
        return self._counted(sorted(holders), workers, logs)

    def _whole(self) -> CaptureView | None:
        """A finished cache, by its manifest; None where that is damaged or of another version."""
        try:
            manifest = find_manifest(self._cache)
        except CacheError:
            return None
        if manifest is None:
            return None
        shards, splits = len(manifest.shards), manifest.splits.values()
        documents, tokens = sum(split.documents for split in splits), sum(split.tokens for split in splits)
        return CaptureView(self._cache.name, "done", shards, shards, documents, tokens, (), 0, None, None)

    def _holders(self) -> dict[str, str]:
        """Who holds what: marks of processes, by unit, without those that are known to have ended or gone silent."""
        now, held = time.monotonic(), {}
        for name in self._cache.names(LEASES):
            with suppress(FileNotFoundError):  # its holder has just dropped it
                found = self._cache.read_bytes(name)
                content, since = self._beats.get(name, (None, now))
                self._beats[name] = found, since if content == found else now
                mark = str(_json(found).get("holder", ""))
                if is_alive(mark) or (not is_gone(mark) and now - self._beats[name][1] < QUIET_SECONDS):
                    held[name.removeprefix(f"{LEASES}/").removesuffix(".json")] = mark
        return held

    def _read_sidecars(self) -> dict[str, dict[str, Any]]:
        """Bring the known sidecars up to date, each read once; returns the logs of their shards."""
        names = {name for name in self._cache.names("shards") if name.endswith(".json") and shard_of(name)}
        self._sidecars = {name: record for name, record in self._sidecars.items() if name in names}
        for name in sorted(names - self._sidecars.keys()):
            if record := read_named_sidecar(self._cache, name):
                self._sidecars[name] = record
        logs = {}
        for record in self._sidecars.values():
            with suppress(FileNotFoundError):
                log = _json(self._cache.read_bytes(f"logs/{record.name}.json"))
                if isinstance(log.get("worker"), str) and isinstance(log.get("tokens_per_second"), float):
                    logs[record.name] = log
        return logs

    def _counted(self, in_hand: list[str], workers: set[str], logs: dict[str, dict[str, Any]]) -> CaptureView:
        records = list(self._sidecars.values())
        documents, tokens = sum(record.documents for record in records), sum(record.tokens for record in records)
        rates = {log["worker"]: log["tokens_per_second"] for _, log in sorted(logs.items()) if log["worker"] in workers}
        rate = math.fsum(rates.values()) or None
        settings = self._settings()
        left = None
        if settings and rate and documents:
            wanted = settings.documents.limit + settings.documents.validation.documents
            left = max(0, wanted - documents) * tokens / documents / rate
        return CaptureView(
            shard=self._cache.name,
            state="running" if time.monotonic() - self._busy < SETTLE_SECONDS else "stopped" if records else "waiting",
            shards_done=len(records),
            shards=shard_count(settings) if settings else None,
            documents=documents,
            tokens=tokens,
            in_hand=tuple(in_hand),
            workers=len(workers),
            tokens_per_second=rate,
            seconds_left=left,
        )

    def _settings(self) -> ShardManifest | None:
        """What is captured: the rule says it from the first moment."""
        with suppress(Damaged, ManifestError):
            rule: Rule | None = read_rule(self._cache)
            return parse(ShardManifest, rule.shard, RULE) if rule else self._planned
        return self._planned


def shard_count(shard: ShardManifest) -> int:
    """Shards of both splits, if the source holds as many documents as the limits ask for."""
    each = shard.cache.documents_per_shard
    return math.ceil(shard.documents.limit / each) + math.ceil(shard.documents.validation.documents / each)


def _json(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
