"""Fewer entries of rows that are scored already: topk and threshold targets need no teacher once a larger k was kept."""

from dataclasses import replace

import numpy as np

from pipeline.contract.logit_cache.masses import tails_with_dropped
from pipeline.contract.logit_cache.schema import CachedDocument


def narrow(document: CachedDocument, k: int, c: float = 0.0) -> CachedDocument:
    """Keep the k most probable of each row, or those of them that are c or more; the mass of the others joins the tails.

    `document` is as an engine gives it under topk or threshold: the most probable entry first.
    """
    counts = document.counts.astype(np.int64)
    place = np.arange(len(document.ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = (place < k) & (np.exp(document.logprobs) >= c)
    tails = {tau: tail.astype(np.float32) for tau, tail in tails_with_dropped(document, kept).items()}
    row_of = np.repeat(np.arange(document.tokens), counts)
    return replace(
        document,
        counts=np.bincount(row_of[kept], minlength=document.tokens).astype(np.uint8),
        ids=document.ids[kept],
        logprobs=document.logprobs[kept],
        tail_logprob=tails.pop(1.0),
        other_tails=tails,
    )
