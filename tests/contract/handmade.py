"""Caches without a teacher: hand-made documents through the product's writer and manifest."""

from pathlib import Path

import numpy as np

from pipeline.contract.logit_cache.codec import Codec, make_codec, needs_vocabulary
from pipeline.contract.logit_cache.index import (
    MANIFEST,
    VOCABULARY_FILE,
    CacheManifest,
    FileRecord,
    MadeBy,
    ShardRecord,
    SplitRecord,
)
from pipeline.contract.logit_cache.schema import FORMAT_VERSION, CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.sealed import write_sealed
from pipeline.contract.store import Store, open_store

VOCAB = 151_936
TARGETS = Targets(k=4)
VOCABULARY = Vocabulary(np.arange(VOCAB, dtype=np.int32)[::-1].copy(), np.zeros((1, 0), dtype=np.int32))
"""The ids backwards."""
MADE_BY = MadeBy(fingerprint="f" * 32, vocabulary=None)


def handmade(length: int, seed: int, k: int = 4) -> CachedDocument:
    """A document of `length` tokens whose rows hold `k` entries and sum to one with their tail."""
    rng, rows = np.random.default_rng(seed), length - 1
    scores = -np.sort(rng.exponential(2, (rows, k + 1)), axis=1)
    logprobs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return CachedDocument(
        token_ids=rng.integers(0, VOCAB, length).astype(np.int32),
        counts=np.full(rows, k, dtype=np.uint8),
        tail_logprob=logprobs[:, k].astype(np.float32),
        label_logprob=-rng.exponential(2, rows).astype(np.float32),
        ids=(rng.integers(0, VOCAB // k, rows * k) * k + np.tile(np.arange(k), rows)).astype(np.int32),  # no id twice in a row
        logprobs=logprobs[:, :k].flatten().astype(np.float32),
    )


def codec(name: str = "plain") -> Codec:
    return make_codec(name, TARGETS, VOCABULARY if needs_vocabulary(name) else None)


def write(cache: Store, index: int, documents: list[CachedDocument], *, first: int = 0, tokens_per_batch: int = 50, name: str = "plain"):
    """Shard `index` of the training split."""
    options = {"made_by": MADE_BY, "first_document": first, "tokens_per_batch": tokens_per_batch, "skipped": {"null": index}}
    return write_shard(cache, codec(name), "train", index, documents, **options)


def write_cache(
    location: Path | Store, documents: list[CachedDocument], per_shard: int, *, name: str = "plain", **options: int
) -> list[ShardRecord]:
    """A whole cache of one split, but for the records that only stage one reads."""
    cache = location if isinstance(location, Store) else open_store(location)
    starts = range(0, len(documents), per_shard)
    shards = [write(cache, i, documents[start : start + per_shard], first=start, name=name, **options) for i, start in enumerate(starts)]
    totals = {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "tokens", "input_tokens")}
    manifest = CacheManifest(
        format_version=FORMAT_VERSION,
        codec=name,
        shard={"targets": TARGETS.model_dump()},
        overrides={},
        identity={},
        fingerprint=MADE_BY.fingerprint,
        vocab_size=VOCAB,
        separator_id=151_643,
        teacher=[],
        vocabulary=_write_vocabulary(cache, name),
        splits={"train": SplitRecord(**totals, limit=totals["documents"], source_exhausted=False, skipped={}, shards=shards)},
    )
    write_sealed(cache, MANIFEST, manifest.model_dump())
    return shards


def _write_vocabulary(cache: Store, name: str) -> FileRecord | None:
    if not needs_vocabulary(name):
        return None
    with cache.scratch(VOCABULARY_FILE) as path:
        path.write_bytes(VOCABULARY.to_bytes())
        record = FileRecord.of(path, VOCABULARY_FILE)
        cache.put(path, VOCABULARY_FILE)
    return record


def flip_bit(path: Path, at: int | None = None) -> None:
    """Damage one bit in the middle of a file, or of byte `at`."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
