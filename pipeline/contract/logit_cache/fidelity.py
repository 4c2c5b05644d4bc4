"""What the codec costs, measured on every row as it is written."""

import numpy as np

from pipeline.contract.logit_cache.index import Fidelity
from pipeline.contract.logit_cache.schema import CachedDocument

FIRST_DECADE, BINS_PER_DECADE = -12, 10
BINS = -FIRST_DECADE * BINS_PER_DECADE + 1


def row_kl(exact: CachedDocument, restored: CachedDocument) -> np.ndarray:
    """[T-1] float64 KL(exact || restored) in nats; the tail is one outcome, and the codec keeps its mass."""
    p = exact.logprobs.astype(np.float64)
    terms = np.exp(p) * (p - restored.logprobs.astype(np.float64))
    filled = exact.counts > 0
    starts = (np.cumsum(exact.counts, dtype=np.int64) - exact.counts)[filled]
    kl = np.zeros(len(exact.counts))
    if len(starts):
        kl[filled] = np.add.reduceat(terms, starts)
    return kl


def measure(kl: np.ndarray) -> Fidelity:
    """Summarise KL values [rows] of one shard."""
    with np.errstate(divide="ignore", invalid="ignore"):
        decade = np.floor((np.log10(np.maximum(kl, 0)) - FIRST_DECADE) * BINS_PER_DECADE)
    bins = np.clip(decade, 0, BINS - 1).astype(np.int64)
    return Fidelity(
        kl_sum=float(kl.sum()),
        kl_max=float(kl.max(initial=0.0)),
        histogram=np.bincount(bins, minlength=BINS).tolist(),
    )


def quantile(parts: list[Fidelity], share: float) -> float:
    """Upper edge of the histogram bin that holds the `share` quantile of all rows' KL, in nats."""
    histogram = np.sum([part.histogram for part in parts], axis=0)
    bin_index = int(np.searchsorted(np.cumsum(histogram), share * histogram.sum()))
    return float(10.0 ** (FIRST_DECADE + (bin_index + 1) / BINS_PER_DECADE))
