"""Random loss inputs with the awkward cases in: ignored labels, padded entries, vanishing tails."""

from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor

from stage2_student.loss import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail, distillation_loss, fused_distillation_loss

TAILS = get_args(Tail)
T, V, D, K = 23, 37, 11, 6


class Case(NamedTuple):
    """hidden [T, D], weight [V, D], labels [T], targets of K entries a row."""

    hidden: Tensor
    weight: Tensor
    labels: Tensor
    targets: SparseTargets


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_case(*, seed: int = 0, dtype: torch.dtype = torch.float64, rows: int = T, vocabulary: int = V, scale: float = 1.0) -> Case:
    """Rows 0 and 7 have a tail mass of 1e-12 and 0; every third row is padded with an id that it also keeps; row 4 has no label."""
    g = generator(seed)
    hidden = torch.randn(rows, D, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
    weight = (scale * torch.randn(vocabulary, D, generator=g, dtype=torch.float64)).to(dtype).requires_grad_()
    labels = torch.randint(vocabulary, (rows,), generator=g)
    labels[[4, rows - 1]] = IGNORE_INDEX
    return Case(hidden, weight, labels, _targets(rows, vocabulary, g))


def _targets(rows: int, vocabulary: int, g: torch.Generator) -> SparseTargets:
    probabilities, ids = torch.randn(rows, vocabulary, generator=g, dtype=torch.float64).mul(2).softmax(-1).topk(K)
    valid = torch.ones_like(ids, dtype=torch.bool)
    valid[::3, 4:] = False
    kept = probabilities.masked_fill(~valid, 0).sum(-1)
    tail = 1 - kept
    tail[0], tail[7] = 1e-12, 0.0
    probabilities = probabilities * ((1 - tail) / kept)[:, None]
    ids[::3, 4:] = ids[::3, :2]
    probabilities[::3, 4:] = torch.tensor([9.0, torch.nan], dtype=torch.float64)  # whatever stands there is not read
    return SparseTargets(ids, probabilities, valid, tail)


def full_targets(logits: Tensor) -> SparseTargets:
    """Every id kept, in a random order."""
    order = torch.argsort(torch.rand(logits.shape, generator=generator(5)), dim=-1)
    kept = logits.softmax(-1).gather(-1, order)
    return SparseTargets(order, kept, torch.ones_like(order, dtype=torch.bool), torch.zeros(len(logits), dtype=logits.dtype))


def top_targets(logits: Tensor, k: int = K) -> SparseTargets:
    kept, ids = logits.softmax(-1).topk(k)
    return SparseTargets(ids, kept, torch.ones_like(ids, dtype=torch.bool), 1 - kept.sum(-1))


def reference(case: Case, **options: Any) -> DistillationLoss:
    return distillation_loss(case.hidden @ case.weight.T, case.labels, case.targets, **options)


def fused(case: Case, *, chunk: int = 5, **options: Any) -> DistillationLoss:
    return fused_distillation_loss(*case, chunk=chunk, **options)


def gradients(case: Case, loss: Tensor, upstream: float = 1.0) -> tuple[Tensor, Tensor]:
    return torch.autograd.grad(loss, [case.hidden, case.weight], torch.as_tensor(upstream, dtype=loss.dtype))


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference over the largest entry of `b`."""
    return ((a.double() - b.double()).abs().max() / b.double().abs().max().clamp_min(1e-300)).item()
