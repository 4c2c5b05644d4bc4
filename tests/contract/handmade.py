"""Caches without a teacher: hand-made documents through the product's writer and manifest."""

from pathlib import Path

import numpy as np

from pipeline.contract.atomic_io import write_json
from pipeline.contract.logit_cache.codec import CODEC
from pipeline.contract.logit_cache.index import CacheManifest, ShardRecord, SplitRecord
from pipeline.contract.logit_cache.schema import FORMAT_VERSION, CachedDocument
from pipeline.contract.logit_cache.writer import write_shard


def handmade(length: int, seed: int, k: int = 4) -> CachedDocument:
    """A document of `length` tokens whose rows hold `k` entries and sum to one with their tail."""
    rng, rows = np.random.default_rng(seed), length - 1
    scores = -np.sort(rng.exponential(2, (rows, k + 1)), axis=1)
    logprobs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return CachedDocument(
        token_ids=rng.integers(0, 151_936, length).astype(np.int32),
        counts=np.full(rows, k, dtype=np.uint8),
        tail_logprob=logprobs[:, k].astype(np.float32),
        label_logprob=-rng.exponential(2, rows).astype(np.float32),
        ids=rng.integers(0, 151_936, rows * k).astype(np.int32),
        logprobs=logprobs[:, :k].flatten().astype(np.float32),
    )


def write(cache: Path, index: int, documents: list[CachedDocument], *, first: int = 0, tokens_per_batch: int = 50) -> ShardRecord:
    options = {"first_document": first, "tokens_per_batch": tokens_per_batch, "skipped": {"null": index}}
    return write_shard(cache, "train", index, documents, **options)


def write_cache(cache: Path, documents: list[CachedDocument], per_shard: int, **options: int) -> list[ShardRecord]:
    """A whole cache of one split."""
    starts = range(0, len(documents), per_shard)
    shards = [write(cache, i, documents[start : start + per_shard], first=start, **options) for i, start in enumerate(starts)]
    totals = {name: sum(getattr(shard, name) for shard in shards) for name in ("documents", "tokens", "input_tokens")}
    manifest = CacheManifest(
        format_version=FORMAT_VERSION,
        codec=CODEC,
        shard={"targets": {"mode": "topk", "k": 4}},
        overrides={},
        identity={},
        fingerprint="0" * 32,
        vocab_size=151_936,
        separator_id=151_643,
        teacher=[],
        splits={"train": SplitRecord(**totals, limit=totals["documents"], source_exhausted=False, skipped={}, shards=shards)},
    )
    write_json(cache / "manifest.json", manifest.model_dump())
    return shards


def flip_bit(path: Path, at: int | None = None) -> None:
    """Damage one bit in the middle of a file, or of byte `at`."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    path.write_bytes(data)
