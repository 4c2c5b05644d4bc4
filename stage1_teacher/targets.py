"""Which entries of a distribution to keep: functions of one chunk of rows, for any engine to call."""

from typing import NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """Kept entries of R rows, most probable first; all values are natural-log probabilities over the whole vocabulary."""

    ids: Tensor  # [R, K] int64
    logprobs: Tensor  # [R, K] float32
    tail_logprob: Tensor  # [R]
    label_logprob: Tensor  # [R]


def keep_topk(logits: Tensor, labels: Tensor, k: int) -> Kept:
    """Keep the k largest of float32 `logits` [R, V]; `labels` [R].

    The tail is a log-sum-exp over the ids that are not kept, never 1 - sum(p): the difference cancels where the
    tail is small, and the student's gradient divides by it. `logits` is overwritten.
    """
    log_normalizer = logits.logsumexp(-1)
    label_logprob = logits.gather(-1, labels[:, None])[:, 0] - log_normalizer
    values, ids = logits.topk(k, dim=-1)
    tail = logits.scatter_(-1, ids, -torch.inf).logsumexp(-1)
    return Kept(ids, values - log_normalizer[:, None], tail - log_normalizer, label_logprob)
