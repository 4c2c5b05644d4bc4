"""What a shard will weigh and take, before anyone starts it: its first documents are scored, and nothing is kept."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from pipeline.contract.errors import DocumentError
from pipeline.contract.hashing import hash_json
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.calibration import choose_codec, token_counts
from stage1_teacher.documents.base import RawDocument
from stage1_teacher.engines.open_engine import open_engine
from stage1_teacher.piloting.costs import Cost, measure_costs, same_targets, wanted_targets
from stage1_teacher.piloting.curve import MassCurve, mass_curve
from stage1_teacher.piloting.scoring import OnScored, measure_rate, score_for
from stage1_teacher.piloting.totals import Totals, extrapolate, shard_documents
from stage1_teacher.rule import Inputs, find_inputs
from stage1_teacher.tokenization import DocumentTokenizer


@dataclass
class PilotRequest:
    """What to try, and what a device costs: `price` of one an hour, in any currency, None to leave money out."""

    shard: ShardManifest
    documents: int = 64
    gpus: int = 1
    price: float | None = None
    on_scored: OnScored = lambda done, wanted, seconds: None


@dataclass(frozen=True)
class Pilot:
    """What a pilot found.

    Attributes:
        documents_hash: of the whole source, as `cache stats` gives it: which documents the figures are of.
        codec: the one that the cache would have.
        documents: scored; `skipped` were read among them, by reason.
        tokens: target tokens scored; the rate is of the `timed_tokens` that were scored once more.
        teacher_bytes: of embedding, head and norm, which a cache has beside its shards.
    """

    shard: ShardManifest
    documents_hash: str
    codec: str
    device: str
    documents: int
    skipped: dict[str, int]
    tokens: int
    timed_tokens: int
    tokens_per_second: float
    curve: MassCurve
    costs: list[Cost]
    totals: Totals
    teacher_bytes: int

    def disk(self, cost: Cost) -> float:
        """Bytes of the whole shard's payloads and vocabulary."""
        return cost.bytes_per_token * self.totals.tokens + cost.vocabulary_bytes

    def disk_se(self, cost: Cost) -> float | None:
        """Standard error that the number of tokens brings; bytes a token are taken as measured."""
        return None if self.totals.tokens_se is None else cost.bytes_per_token * self.totals.tokens_se

    def as_json(self) -> dict[str, Any]:
        costs = [{**cost.as_json(), "disk_bytes": self.disk(cost), "disk_bytes_se": self.disk_se(cost)} for cost in self.costs]
        others = {key: value for key, value in vars(self).items() if key not in ("shard", "curve", "costs", "totals")}
        return {"shard": self.shard.name, **others, "curve": self.curve.as_json(), "targets": costs, "whole": asdict(self.totals)}


@dataclass
class FirstDocuments:
    """The first kept documents in the order of the stream; `is_all` when the source has no more than these."""

    texts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    is_all: bool = False

    @classmethod
    def read(cls, source: Iterable[RawDocument], wanted: int) -> "FirstDocuments":
        """Up to `wanted` of them, and what was skipped before the last."""
        first, passed = cls(), Counter[str]()
        for raw in source:
            if raw.text is None:
                passed[raw.skip or "unknown"] += 1
                continue
            if len(first.texts) == wanted:
                return first
            first.texts.append(raw.text)
            first.origins.append(raw.origin)
            first.skipped, passed = first.skipped + passed, Counter[str]()
        return replace(first, skipped=first.skipped + passed, is_all=True)


def pilot(request: PilotRequest) -> Pilot:
    """Score the first documents and measure.

    Raises:
        TeacherError, DocumentError: something to read is missing or broken.
    """
    shard = request.shard
    inputs = find_inputs(shard)
    tokenizer = DocumentTokenizer(inputs.teacher, shard.documents)
    whole = shard_documents(shard.documents)
    first = FirstDocuments.read(inputs.documents, min(request.documents, whole))
    ids = tokenizer.encode(first.texts)
    lengths = [len(each) - 1 for each in ids]
    if not sum(lengths):
        raise DocumentError(f"documents.files={shard.documents.files}: the first {len(ids)} documents hold no token to score; give others")
    engine = open_engine(inputs.teacher, shard)
    wanted = wanted_targets(shard.targets, engine.vocab_size)
    scored = score_for(engine, ids, first.origins, wanted, request.on_scored)
    timed_tokens, rate = measure_rate(engine, ids)
    codec = shard.cache.codec if shard.cache.codec != "auto" else choose_codec(shard, inputs.documents, tokenizer)
    counts = _token_counts(shard, inputs, tokenizer, engine.vocab_size)
    return Pilot(
        shard=shard,
        documents_hash=hash_json(inputs.identity["documents.content"]),
        codec=codec,
        device=engine.device_name,
        documents=len(ids),
        skipped=dict(sorted(first.skipped.items())),
        tokens=sum(lengths),
        timed_tokens=timed_tokens,
        tokens_per_second=rate,
        curve=mass_curve(scored.widest),
        costs=[
            cost
            for targets in wanted
            for cost in measure_costs(scored.under(targets), targets, shard.cache, counts, same_targets(targets, shard.targets), codec)
        ],
        totals=extrapolate(lengths, len(ids) if first.is_all else whole, rate, request.gpus, request.price),
        teacher_bytes=sum(tensor.nbytes for tensor in engine.interface().tensors.values()),
    )


def _token_counts(shard: ShardManifest, inputs: Inputs, tokenizer: DocumentTokenizer, vocab_size: int) -> np.ndarray:
    """[V] what a capture would order its vocabulary by."""
    counts = np.zeros(vocab_size, dtype=np.int64)
    seen = token_counts(inputs.documents, tokenizer, shard.cache.vocabulary_tokens)[:vocab_size]
    counts[: len(seen)] = seen
    return counts
