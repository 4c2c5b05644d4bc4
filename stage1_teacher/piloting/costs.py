"""What a target token weighs under each kind of targets and each codec, and what it loses: measured on shards that are really written.

Every figure is of a payload that `write_shard` made in a temporary folder, as a capture makes them; its framing, 3 to 9 kB, is
in it and weighs on very few documents. Clusters are fitted to the first half of the rows and measured on the other: on the
rows they are fitted to they would look better than they are.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.contract.logit_cache.clusters import CLUSTERS, cluster_vocabulary
from pipeline.contract.logit_cache.codec import Codec, make_codec, needs_vocabulary
from pipeline.contract.logit_cache.fidelity import merge
from pipeline.contract.logit_cache.index import MadeBy, ShardRecord
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.statistics import figures
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import MAX_KEPT_ENTRIES, CacheLayout, Targets
from pipeline.contract.store import LocalStore

TOPK, THRESHOLD, SAMPLED = (16, 32, 64, 128), (1e-2, 1e-3, 1e-4), (1 / 64, 1 / 128, 1 / 254)
CLUSTER_ROWS = 128 * CLUSTERS
"""Rows that clusters are fitted to, at least: with fewer they are no kinds of rows."""


@dataclass(frozen=True)
class Cost:
    """One kind of targets in one codec.

    Attributes:
        asked: whether the shard's manifest asks for these targets.
        rows: target tokens it was measured on.
        fitted_rows: those that the clusters were fitted to, 0 without clusters.
        vocabulary_bytes: of `vocabulary.arrow`, once a cache.
        fidelity: as in `cache stats`: KL in nats for topk and threshold, noise and bias for a sample.
    """

    targets: Targets
    codec: str
    asked: bool
    rows: int
    fitted_rows: int
    entries_per_token: float
    bytes_per_token: float
    vocabulary_bytes: int
    mass_kept: float
    fidelity: dict[str, float | None]

    @property
    def label(self) -> str:
        """ "topk k=64", "threshold c=0.001", "sampled c=1/128"."""
        mode, c = self.targets.mode, self.targets.c
        return f"topk k={self.targets.k}" if mode == "topk" else f"{mode} c={f'1/{round(1 / c)}' if mode == 'sampled' else f'{c:g}'}"

    def as_json(self) -> dict[str, Any]:
        plain = {key: value for key, value in asdict(self).items() if key not in ("targets", "fidelity")}
        return {"label": self.label, "targets": self.targets.model_dump(), **plain, **self.fidelity}


def wanted_targets(asked: Targets, vocab_size: int) -> list[Targets]:
    """What is compared: four topk, three threshold, three sampled, and the shard's own if it is none of these."""
    wanted = [asked.model_copy(update={"mode": "topk", "k": k}) for k in TOPK if k <= vocab_size]
    wanted += [asked.model_copy(update={"mode": "threshold", "c": c, "k": min(MAX_KEPT_ENTRIES, vocab_size)}) for c in THRESHOLD]
    wanted += [asked.model_copy(update={"mode": "sampled", "c": c, "temperatures": [1.0]}) for c in SAMPLED]
    return wanted if any(same_targets(asked, each) for each in wanted) else [asked, *wanted]


def same_targets(one: Targets, other: Targets) -> bool:
    """Whether they keep the same entries: k says nothing of a sample, c nothing of topk."""
    heeded = {"topk": ("k",), "threshold": ("k", "c"), "sampled": ("c",)}[one.mode]
    return one.mode == other.mode and all(getattr(one, name) == getattr(other, name) for name in heeded)


def codecs(targets: Targets, asked: str) -> list[str]:
    """The codecs to compare but for clusters, by falling size; `asked` is the one that the cache would have."""
    sampled = targets.mode == "sampled"
    return ["raw"] * (asked == "raw") + ["plain"] + ["ranks"] * (asked == "ranks" or not sampled) + ["streams"] * sampled


def measure_costs(
    documents: Sequence[CachedDocument], targets: Targets, layout: CacheLayout, token_counts: np.ndarray, asked: bool, asked_codec: str
) -> Iterator[Cost]:
    """Each codec on documents that were scored with `targets`; clusters where half of the rows are enough to fit them.

    `token_counts` [V] of the documents' tokens: what ids are ordered by.
    """
    vocabulary = Vocabulary.by_frequency(token_counts)
    for codec in codecs(targets, asked_codec):
        yield _cost(documents, make_codec(codec, targets, vocabulary), layout, _size(codec, vocabulary), asked)
    first, second = halves(documents)
    fitted_rows = sum(document.tokens for document in first)
    if fitted_rows >= CLUSTER_ROWS and any(document.tokens for document in second):
        ids, counts = (np.concatenate([getattr(document, name) for document in first]) for name in ("ids", "counts"))
        clustered = cluster_vocabulary(ids, counts, token_counts)
        coded = make_codec("clusters", targets, clustered)
        yield _cost(second, coded, layout, _size("clusters", clustered), asked, fitted_rows)


def halves(documents: Sequence[CachedDocument]) -> tuple[Sequence[CachedDocument], Sequence[CachedDocument]]:
    """The documents with the first half of the rows, and the others."""
    ends = np.cumsum([document.tokens for document in documents])
    cut = int(np.searchsorted(ends, ends[-1] / 2)) + 1
    return documents[:cut], documents[cut:]


def _cost(
    documents: Sequence[CachedDocument], codec: Codec, layout: CacheLayout, vocabulary_bytes: int, asked: bool, fitted_rows: int = 0
) -> Cost:
    records = _write(documents, codec, layout)
    rows = sum(record.tokens for record in records)
    fidelity = merge([record.fidelity for record in records])
    return Cost(
        targets=codec.targets,
        codec=codec.name,
        asked=asked,
        rows=rows,
        fitted_rows=fitted_rows,
        entries_per_token=sum(record.entries for record in records) / rows,
        bytes_per_token=sum(record.payload.bytes for record in records) / rows,
        vocabulary_bytes=vocabulary_bytes,
        mass_kept=sum(record.mass_kept_sum for record in records) / rows,
        fidelity=figures(fidelity.kind, fidelity.whole),
    )


def _size(codec: str, vocabulary: Vocabulary) -> int:
    """Bytes of the vocabulary's file, where the codec has one."""
    return len(vocabulary.to_bytes()) if needs_vocabulary(codec) else 0


def _write(documents: Sequence[CachedDocument], codec: Codec, layout: CacheLayout) -> list[ShardRecord]:
    """Shards as a capture cuts them, in a folder that is gone afterwards."""
    size = layout.documents_per_shard
    with tempfile.TemporaryDirectory() as folder:
        return [
            write_shard(
                LocalStore(Path(folder)),
                codec,
                "train",
                start // size,
                documents[start : start + size],
                first_document=start,
                tokens_per_batch=layout.tokens_per_batch,
                skipped={},
                made_by=MadeBy(fingerprint="pilot", vocabulary=None),
            )
            for start in range(0, len(documents), size)
        ]
