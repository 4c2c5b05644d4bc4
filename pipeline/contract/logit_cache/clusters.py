"""Find the clusters of a vocabulary: kinds of rows, by which ids a teacher keeps in them.

A few Lloyd steps by likelihood: a row joins the cluster under which its ids are cheapest, a cluster's costs are those of its
rows' ids. Costs are whole eighths of a bit, so that equal rows give equal clusters.
"""

import numba
import numpy as np

from pipeline.contract.logit_cache.rank_streams import choose_clusters
from pipeline.contract.logit_cache.vocabulary import COST_UNIT, Vocabulary

CLUSTERS = 64
HEAD = 4096
STEPS = 8
SMOOTHING = 200.0
"""Ids a cluster is taken to have seen in every cluster's proportions, before its own rows."""


def cluster_vocabulary(ids: np.ndarray, counts: np.ndarray, token_counts: np.ndarray, clusters: int = CLUSTERS) -> Vocabulary:
    """A vocabulary from calibration rows: their kept ids [N], row after row, and counts [R]; `token_counts` [V] of the documents.

    The shared order is by kept ids, as if every row had kept one more id, drawn as the documents' tokens are. Without rows
    there are no clusters.
    """
    if len(counts) == 0:
        return Vocabulary.by_frequency(token_counts)
    kept = np.bincount(ids, minlength=len(token_counts)) + token_counts * (len(counts) / max(token_counts.sum(), 1))
    order = np.argsort(-kept, kind="stable").astype(np.int32)
    share = (kept + 1e-9) / (kept + 1e-9).sum()
    seen = _seeds(ids, counts, len(token_counts), clusters)
    for _ in range(STEPS):
        chosen = choose_clusters(ids, counts, _costs(seen, share))
        seen = np.zeros_like(seen)
        _count(ids, counts, chosen, seen)
    head = min(HEAD, len(order))
    base_rank = np.empty(len(order))
    base_rank[order] = np.arange(len(order))
    heads = [np.lexsort((base_rank, column))[:head] for column in -_smoothed(seen, share).T]
    return Vocabulary(order, np.array(heads, dtype=np.int32))


def _seeds(ids: np.ndarray, counts: np.ndarray, vocab_size: int, clusters: int) -> np.ndarray:
    """[V, C] int32: each cluster begins as one row, evenly spaced."""
    starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    seen = np.zeros((vocab_size, clusters), dtype=np.int32)
    for cluster, row in enumerate(np.linspace(0, len(counts) - 1, clusters).astype(int)):
        seen[ids[starts[row] : starts[row + 1]], cluster] = 1
    return seen


def _smoothed(seen: np.ndarray, share: np.ndarray) -> np.ndarray:
    """[V, C] probability of an id in each cluster."""
    return (seen + SMOOTHING * share[:, None]) / (seen.sum(0) + SMOOTHING)


def _costs(seen: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.minimum(np.rint(-COST_UNIT * np.log2(_smoothed(seen, share))), 255).astype(np.uint8)


@numba.njit(cache=True)
def _count(ids, counts, chosen, seen):
    place = 0
    for row in range(len(counts)):
        for _ in range(counts[row]):
            seen[ids[place], chosen[row]] += 1
            place += 1
