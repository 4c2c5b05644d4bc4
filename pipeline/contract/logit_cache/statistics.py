"""The figures of a cache, from its manifest alone: `pipeline cache stats`."""

from typing import Any

from pipeline.contract.logit_cache.fidelity import quantile
from pipeline.contract.logit_cache.index import CacheManifest, ShardRecord


def cache_statistics(manifest: CacheManifest) -> dict[str, Any]:
    """Sizes in bytes, KL and cross-entropy in nats a target token, over all splits.

    `kl_mean` and `kl_p99` are KL(exact || restored) of the kept ids and the tail as one outcome, over every row
    written; `top1_agreement` compares rows scored again by a fresh, unpadded forward.
    """
    shards = [shard for split in manifest.splits.values() for shard in split.shards]
    tokens = sum(shard.tokens for shard in shards)
    size = sum(shard.payload.bytes for shard in shards)
    return {
        "fingerprint": manifest.fingerprint,
        "targets": manifest.shard["targets"],
        "codec": manifest.codec,
        "documents": sum(shard.documents for shard in shards),
        "tokens": tokens,
        "entries_per_token": sum(shard.entries for shard in shards) / tokens,
        "bytes": size,
        "bytes_per_token": size / tokens,
        "mass_kept": sum(shard.mass_kept_sum for shard in shards) / tokens,
        "kl_mean": sum(shard.fidelity.kl_sum for shard in shards) / tokens,
        "kl_p99": quantile([shard.fidelity for shard in shards], 0.99),
        "kl_max": max(shard.fidelity.kl_max for shard in shards),
        "teacher_ce": -sum(shard.label_logprob_sum for shard in shards) / tokens,
        **_fresh_forward(shards),
    }


def _fresh_forward(shards: list[ShardRecord]) -> dict[str, Any]:
    checks = [shard.fresh_forward for shard in shards if shard.fresh_forward]
    rows = sum(check.rows for check in checks)
    return {
        "top1_agreement": sum(check.top1_equal for check in checks) / rows if rows else None,
        "rescored_rows": rows,
        "rescored_logprob_difference_max": max((check.logprob_difference_max for check in checks), default=None),
    }
