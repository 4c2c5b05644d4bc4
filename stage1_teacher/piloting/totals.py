"""From a few documents to the whole shard: tokens, disk, hours, money, and how sure they are.

The first documents are taken for a random sample of the shard: n of N documents, so that the mean's standard error is
s sqrt((1 - n/N) / n), and none is left when all are there (Cochran, Sampling Techniques, 2.6).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.contract.manifest.shard import Documents


@dataclass(frozen=True)
class Totals:
    """The whole shard.

    Attributes:
        documents: training and validation.
        tokens: target tokens; `_se` is a standard error, None for a single document.
        gpu_hours: of one device like the pilot's; `hours` are those of `gpus` of them at once.
        money: what they cost at a price an hour, None without one.
    """

    documents: int
    tokens_per_document: float
    tokens_per_document_se: float | None
    tokens: float
    tokens_se: float | None
    gpu_hours: float
    gpu_hours_se: float | None
    hours: float
    money: float | None


def shard_documents(documents: Documents) -> int:
    """Documents of a whole capture: reading stops at `limit` training documents, maybe before the validation set is full."""
    turns = (documents.limit - 1) // (documents.validation.every - 1) + 1
    return documents.limit + min(documents.validation.documents, turns)


def extrapolate(tokens: Sequence[int], documents: int, tokens_per_second: float, gpus: int = 1, price: float | None = None) -> Totals:
    """The shard of `documents` documents, of which the first hold `tokens` target tokens each; `price` is of one GPU an hour."""
    mean, error = float(np.mean(tokens)), standard_error(tokens, documents)
    total, total_error = mean * documents, None if error is None else error * documents
    gpu_hours = total / tokens_per_second / 3600
    return Totals(
        documents=documents,
        tokens_per_document=mean,
        tokens_per_document_se=error,
        tokens=total,
        tokens_se=total_error,
        gpu_hours=gpu_hours,
        gpu_hours_se=None if total_error is None else total_error / tokens_per_second / 3600,
        hours=gpu_hours / gpus,
        money=None if price is None else gpu_hours * price,
    )


def standard_error(tokens: Sequence[int], documents: int) -> float | None:
    """Of the mean over all `documents`; None for one of several."""
    if len(tokens) == documents:
        return 0.0
    if len(tokens) < 2:
        return None
    return float(np.std(tokens, ddof=1) * np.sqrt((1 - len(tokens) / documents) / len(tokens)))
