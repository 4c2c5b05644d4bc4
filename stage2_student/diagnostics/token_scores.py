"""What a student's guess is worth, token by token: cross-entropy, divergence from the teacher, and whether the best guess is the same."""

from typing import NamedTuple

import torch
from torch import Tensor

from pipeline.contract.manifest.student import StudentManifest
from stage2_student.diagnostics.token_table import AGREES, DIFFERS, UNDECIDED
from stage2_student.loss import IGNORE_INDEX, SparseTargets
from stage2_student.loss.reference import row_divergence

CHUNK = 512
"""Rows of [rows, vocabulary] that exist at once."""


class TokenScores(NamedTuple):
    """Each [T], 0 (undecided) for rows without a label: `ce` and `kl` float64 in nats, `agreement` as in `TokenTable`."""

    ce: Tensor
    kl: Tensor
    agreement: Tensor


def score_tokens(hidden: Tensor, weight: Tensor, labels: Tensor, targets: SparseTargets, settings: StudentManifest) -> TokenScores:
    """Score rows `hidden` [T, D] under the head `weight` [V, D] against labels [T] and the teacher's entries."""
    scores = TokenScores(
        torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device),
        torch.zeros(len(hidden), dtype=torch.float64, device=hidden.device),
        torch.full((len(hidden),), UNDECIDED, dtype=torch.uint8, device=hidden.device),
    )
    for rows in (labels != IGNORE_INDEX).nonzero()[:, 0].split(CHUNK):
        logits, kept = hidden[rows] @ weight.T, targets.rows(rows)
        scores.ce[rows] = torch.nn.functional.cross_entropy(logits, labels[rows], reduction="none").double()
        scores.kl[rows] = row_divergence(logits / settings.temperature, kept, settings.decided_tail)[0].double()
        scores.agreement[rows] = _agreement(logits.argmax(-1), kept)
    return scores


def _agreement(best: Tensor, targets: SparseTargets) -> Tensor:
    """[C]: the student's best ids against the teacher's; two equal largest entries (codecs round, a sample's are alike) have no best."""
    weights = targets.weights.masked_fill(~targets.valid, -1)
    largest, place = weights.max(-1)
    undecided = (weights == largest[:, None]).sum(-1) > 1
    same = targets.ids.gather(-1, place[:, None])[:, 0] == best
    return torch.where(undecided, UNDECIDED, torch.where(same, AGREES, DIFFERS)).to(torch.uint8)
