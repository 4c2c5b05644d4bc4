"""Cached documents to padded tensors: right padding, masks from lengths, one row of targets for each label."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache import CachedDocument
from stage2_student.loss import IGNORE_INDEX, SparseTargets


class MicroBatch(NamedTuple):
    """B documents padded to T tokens. Labels and targets are of token t+1, so position T-1 never has one.

    Attributes:
        input_ids: [B, T] int64.
        labels: [B * T] int64, IGNORE_INDEX where there is no next token.
        targets: rows for every position, [B * T, K].
        tokens: labels that count.
    """

    input_ids: Tensor
    labels: Tensor
    targets: SparseTargets
    tokens: int

    def to(self, device: torch.device) -> "MicroBatch":
        targets = SparseTargets(*(part.to(device, non_blocking=True) for part in self.targets))
        return self._replace(input_ids=self.input_ids.to(device), labels=self.labels.to(device), targets=targets)


def collate(documents: Sequence[CachedDocument], vocab_size: int) -> MicroBatch:
    """Pad documents on the right; none gives a micro-batch of one document with no label, for a rank that has nothing to do.

    Raises:
        CacheError: a token id or an entry outside the student's vocabulary.
    """
    time = max((len(document.token_ids) for document in documents), default=2)
    width = max((int(document.counts.max(initial=0)) for document in documents), default=1)
    rows = max(len(documents), 1)
    input_ids = np.zeros((rows, time), dtype=np.int64)
    labels = np.full((rows, time), IGNORE_INDEX, dtype=np.int64)
    ids, weights = np.zeros((rows, time, width), dtype=np.int64), np.zeros((rows, time, width), dtype=np.float32)
    valid, tail = np.zeros((rows, time, width), dtype=bool), np.zeros((rows, time), dtype=np.float32)
    for row, document in enumerate(documents):
        _check_vocabulary(document, vocab_size)
        input_ids[row, : len(document.token_ids)] = document.token_ids
        labels[row, : document.tokens] = document.token_ids[1:]
        tail[row, : document.tokens] = document.tail_mass
        filled = np.arange(width) < document.counts[:, None]  # [T-1, K]
        valid[row, : document.tokens] = filled
        ids[row, : document.tokens][filled] = document.ids
        weights[row, : document.tokens][filled] = np.exp(document.logprobs)
    flat = [torch.from_numpy(part).flatten(0, 1) for part in (ids, weights, valid, tail)]
    tokens = sum(document.tokens for document in documents)
    return MicroBatch(torch.from_numpy(input_ids), torch.from_numpy(labels).flatten(), SparseTargets(*flat), tokens)


def _check_vocabulary(document: CachedDocument, vocab_size: int) -> None:
    largest = max(int(document.token_ids.max()), int(document.ids.max(initial=0)))
    if largest >= vocab_size:
        raise CacheError(
            f"token id {largest} is outside the student's vocabulary of {vocab_size}; "
            "the cache's teacher folder and its shards do not belong together: run 'pipeline cache verify --deep'"
        )
