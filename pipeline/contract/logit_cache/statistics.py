"""The figures of a cache, from its manifest alone: `pipeline cache stats`."""

from typing import Any

from pipeline.contract.hashing import hash_json
from pipeline.contract.logit_cache.fidelity import BAND_EDGES, Band, merge, quantile
from pipeline.contract.logit_cache.index import CacheManifest, ShardRecord

BAND_NAMES = ("below 0.1", "0.1 to 1", "1 to 3", "above 3")


def cache_statistics(manifest: CacheManifest) -> dict[str, Any]:
    """Sizes in bytes; KL, entropy and cross-entropy in nats a target token, over all splits.

    `kl_*` are KL(exact || restored) of the kept ids and the tail as one outcome, over every row written. A sample has
    `gradient_error` (the noise of its weights relative to the distribution, root of the ratio of squared sums) and
    `noise_ratio` (the same over that of the sample before it was coded) and `certain_bias` (mass of the certain entries,
    restored over exact, less 1). `at_temperature` has the same at each other captured temperature, `bands` by the
    teacher's entropy in nats. `top1_agreement` compares rows scored again by a fresh, unpadded forward.
    `documents_hash` stands for the documents' content.
    """
    shards = manifest.shards
    tokens = sum(shard.tokens for shard in shards)
    size = sum(shard.payload.bytes for shard in shards)
    fidelity = merge([shard.fidelity for shard in shards])
    return {
        "fingerprint": manifest.fingerprint,
        "documents_hash": hash_json(manifest.identity.get("documents.content")),
        "targets": manifest.shard["targets"],
        "codec": manifest.codec,
        "zero_copy": manifest.codec == "raw",
        "documents": sum(shard.documents for shard in shards),
        "tokens": tokens,
        "entries_per_token": sum(shard.entries for shard in shards) / tokens,
        "bytes": size,
        "bytes_per_token": size / tokens,
        "vocabulary_bytes": manifest.vocabulary.bytes if manifest.vocabulary else 0,
        "mass_kept": sum(shard.mass_kept_sum for shard in shards) / tokens,
        **figures(fidelity.kind, fidelity.whole),
        **({"at_temperature": _at_temperatures(shards)} if shards[0].fidelity_at else {}),
        "bands": {name: {"rows": band.rows, **figures(fidelity.kind, band)} for name, band in zip(BAND_NAMES, fidelity.bands, strict=True)},
        "teacher_ce": -sum(shard.label_logprob_sum for shard in shards) / tokens,
        "teacher_entropy": sum(shard.entropy_sum for shard in shards) / tokens,
        **_fresh_forward(shards),
    }


def figures(kind: str, band: Band) -> dict[str, Any]:
    """Means and extremes of a band's rows; None where there are none."""
    rows = band.rows or None
    if kind == "kl":
        return {
            "kl_mean": rows and band.error / rows,
            "kl_p99": quantile(band, 0.99),
            "kl_max": rows and band.error_max,
        }
    return {
        "kl_mean": None,
        "kl_p99": None,
        "kl_max": None,
        "gradient_error": rows and (band.error / band.square) ** 0.5,
        "noise_ratio": (band.error / band.plain_error) ** 0.5 if band.plain_error else None,
        "certain_bias": band.certain_restored / band.certain_mass - 1 if band.certain_mass else None,
    }


def _at_temperatures(shards: list[ShardRecord]) -> dict[str, dict[str, Any]]:
    parts = {tau: merge([shard.fidelity_at[tau] for shard in shards]) for tau in shards[0].fidelity_at}
    return {tau: {"mass_kept": part.whole.mass_kept / part.whole.rows, **figures(part.kind, part.whole)} for tau, part in parts.items()}


def _fresh_forward(shards: list[ShardRecord]) -> dict[str, Any]:
    checks = [shard.fresh_forward for shard in shards if shard.fresh_forward]
    rows = sum(check.rows for check in checks)
    return {
        "top1_agreement": sum(check.top1_equal for check in checks) / rows if rows else None,
        "rescored_rows": rows,
        "rescored_logprob_difference_max": max((check.logprob_difference_max for check in checks), default=None),
    }


assert len(BAND_NAMES) == len(BAND_EDGES) + 1
