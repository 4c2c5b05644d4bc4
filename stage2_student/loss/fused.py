"""The distillation loss from hidden states: [tokens, vocabulary] never exists, and gradients are made in the forward pass.

A chunk of rows at a time: logits, a log-sum-exp a row over what is not kept, the gradient in the same memory, two products
back. Everything else is of size [rows, kept entries] (`row_terms.py`). Over its inputs it needs a chunk of logits and the
head's gradient in float32, whatever the number of tokens.

Products are in the model's dtype. Logits are kept in float32 where the hardware gives them from bfloat16 (CUDA; the
gradient then has memory of its own); on a CPU they have the model's dtype.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from stage2_student.loss.row_kernels import Kernels, RowKernels, choose_kernels
from stage2_student.loss.row_terms import (
    Student,
    Weights,
    cross_entropy_gradient,
    divergence_gradient,
    divergence_sums,
    student_rows,
    teacher_rows,
)
from stage2_student.loss.targets import IGNORE_INDEX, DistillationLoss, SparseTargets, Tail

VOCABULARY_BLOCK = 8192
"""Rows of the head that a product takes at a time: what is written then stays in the processor's cache."""


def fused_distillation_loss(
    hidden: Tensor,
    head_weight: Tensor,
    labels: Tensor,
    targets: SparseTargets,
    *,
    alpha: float = 0.7,
    gamma: float = 0.3,
    temperature: float = 1.0,
    tail: Tail = "bucket",
    tokens: float | None = None,
    chunk: int = 2048,
    kernels: Kernels = "auto",
) -> DistillationLoss:
    """`distillation_loss` of `hidden @ head_weight.T`, at most `chunk` rows at a time.

    `hidden` [T, D], `head_weight` [V, D]; the rest as in `distillation_loss`. Log-sum-exps and coefficients are at
    least float32, float64 for float64 inputs; the head's gradient is summed over chunks in that precision too. Without a
    gradient to make, the second pass and the products back are left out.

    Raises:
        RunError: `kernels` asked for by name that this machine cannot run.
    """
    counted = (labels != IGNORE_INDEX).nonzero()[:, 0]
    divisor = float(max(len(counted), 1) if tokens is None else tokens)
    weights = Weights(alpha, gamma, temperature, tail, divisor)
    chosen = choose_kernels(kernels, len(counted) * len(head_weight), hidden.device)
    inputs = (hidden[counted], head_weight, labels[counted], targets.rows(counted), weights, chunk, chosen)
    return DistillationLoss(*_Fused.apply(*inputs, torch.is_grad_enabled()))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        targets: SparseTargets,
        w: Weights,
        chunk: int,
        kernels: RowKernels,
        training: bool,
    ) -> tuple[Tensor, ...]:
        precise = torch.promote_types(hidden.dtype, torch.float32)
        d_hidden = torch.empty_like(hidden) if training else None
        wanted = training and ctx.needs_input_grad[1]  # a frozen head needs none
        d_weight = _memory_of_sum(weight, precise, summands=-(-len(hidden) // chunk)) if wanted else None
        sums = torch.zeros(4, dtype=torch.float64, device=hidden.device)  # kl, kd, ce, student tail
        for rows, logits in _chunks_of_logits(hidden, weight, chunk):
            chunk_of = _Chunk(logits, labels[rows], targets.rows(rows), w, kernels, precise)
            sums += chunk_of.sums()
            if d_hidden is not None:
                gradient = chunk_of.gradient(hidden.dtype)
                torch.mm(gradient, weight, out=d_hidden[rows])
                if d_weight is not None:
                    _add_product(d_weight, gradient.T, hidden[rows], first=rows.start == 0)
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.weight_dtype = weight.dtype
        kl, kd, ce, student_tail = sums / w.divisor
        loss = (w.alpha * w.temperature**2 * kl + w.gamma * ce).to(precise)
        ctx.mark_non_differentiable(kl, kd, ce, student_tail)
        return loss, kl, kd, ce, student_tail

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        if d_weight is not None:
            rounded = torch.empty_like(d_weight, dtype=ctx.weight_dtype)
            d_weight = torch.mul(d_weight, upstream, out=rounded)
        return d_hidden * upstream.to(d_hidden.dtype), d_weight, None, None, None, None, None, None


def _chunks_of_logits(hidden: Tensor, weight: Tensor, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    """Near-equal slices of rows and their logits [C, V], each in the memory of the one before."""
    count = -(-len(hidden) // chunk)
    size = -(-len(hidden) // max(count, 1))
    dtype = torch.float32 if hidden.is_cuda and hidden.dtype == torch.bfloat16 else hidden.dtype
    memory = torch.empty(size, len(weight), dtype=dtype, device=hidden.device)
    for start in range(0, len(hidden), max(size, 1)):
        rows = slice(start, min(start + size, len(hidden)))
        logits = memory[: rows.stop - start].data  # no view to torch.compile, which would have a graph for views and one for wholes
        for block in _blocks(len(weight)):
            _product(hidden[rows], weight[block].T, logits[:, block])
        yield rows, logits


class _Chunk:
    """C rows: their sums, then their gradient by the logits, in the logits' memory where the dtype is the same."""

    def __init__(
        self, logits: Tensor, labels: Tensor, targets: SparseTargets, w: Weights, kernels: RowKernels, precise: torch.dtype
    ) -> None:
        self.logits, self.labels, self.targets, self.w, self.kernels = logits, labels[:, None], targets, w, kernels
        self.label_logit = logits.gather(-1, self.labels)[:, 0].to(precise)
        self.z_kept = logits.gather(-1, targets.ids).to(precise)
        self.entry = _without_padding(targets.valid)
        # -inf at the kept ids: the log-sum-exp of what is left is the tail's own, precise however small the tail is
        self._write_kept(logits, torch.full_like(self.z_kept, -torch.inf))
        self.plain, self.log_tail = self._student(1.0)
        warm = w.temperature != 1.0
        self.warm, self.warm_log_tail = self._student(1 / w.temperature) if warm else (self.plain, self.log_tail)
        self.q = teacher_rows(targets, w.tail, precise)

    def _write_kept(self, rows: Tensor, values: Tensor) -> None:
        """rows[id] = value for each valid entry. Not by scatter: on a CPU it copies whole bfloat16 rows to float32 and back."""
        ids = self.targets.ids.gather(-1, self.entry)
        values = values.gather(-1, self.entry).to(rows.dtype)
        _put(rows, ids, values.where(self.targets.valid.any(-1, keepdim=True), rows.gather(-1, ids)))

    def _student(self, scale: float) -> tuple[Student, Tensor]:
        log_tail = self.kernels.log_sum_exp(self.logits, self._scale(scale))
        return student_rows(self.z_kept * scale, self.targets.valid, log_tail), log_tail

    def _scale(self, scale: float) -> Tensor:
        return torch.full_like(self.label_logit, scale)

    def sums(self) -> Tensor:
        """[4] kl, kd, ce, student tail."""
        kl, kd, student_tail = divergence_sums(self.warm, self.q, self.targets, self.w.tail)
        return torch.stack([kl, kd, (self.plain.log_normalizer - self.label_logit).sum(), student_tail]).double()

    def gradient(self, dtype: torch.dtype) -> Tensor:
        """[C, V] of the loss by the logits, which are used up."""
        out = self.logits if self.logits.dtype == dtype else torch.empty_like(self.logits, dtype=dtype)
        kl = divergence_gradient(self.warm, self.q, self.targets, self.w)
        ce = cross_entropy_gradient(self.plain, self.targets, self.w)
        both = kl.plus(ce)
        if self.w.temperature == 1.0:
            self.kernels.softmax(out, self.logits, _finite(self.log_tail), both.tail)
        else:
            warm = (self._scale(1 / self.w.temperature), _finite(self.warm_log_tail), kl.tail)
            self.kernels.two_softmaxes(out, self.logits, _finite(self.log_tail), ce.tail, *warm)
        self._write_kept(out, both.kept)
        return _put(out, self.labels, out.gather(-1, self.labels) - self.w.gamma / self.w.divisor)


def _put(rows: Tensor, ids: Tensor, values: Tensor) -> Tensor:
    return rows.index_put_((torch.arange(len(rows), device=rows.device)[:, None], ids), values)


def _without_padding(valid: Tensor) -> Tensor:
    """[C, K] each entry's own place, for a padded one that of the row's first valid entry: its id may be any, a kept one too."""
    places = torch.arange(valid.shape[-1], device=valid.device).expand_as(valid)
    return places.where(valid, valid.byte().argmax(-1, keepdim=True)) if valid.shape[-1] else places


def _finite(log_tail: Tensor) -> Tensor:
    """-inf - -inf would be no number where every id is kept."""
    return log_tail.clamp_min(torch.finfo(log_tail.dtype).min)


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """out = left @ right; on CUDA `out` may be float32 where the factors are bfloat16."""
    if out.dtype == left.dtype:
        return torch.mm(left, right, out=out)
    return torch.mm(left, right, out_dtype=out.dtype, out=out)


def _memory_of_sum(weight: Tensor, precise: torch.dtype, summands: int) -> Tensor:
    """For a sum of products in the shape of `weight`, which the first overwrites; what a CPU rounds anyway needs no more for one."""
    if not summands:
        return torch.zeros_like(weight)
    return torch.empty_like(weight, dtype=weight.dtype if summands == 1 and not weight.is_cuda else precise)


def _add_product(total: Tensor, left: Tensor, right: Tensor, first: bool) -> None:
    """total += left @ right in total's precision, or = for the first; a product of bfloat16 is rounded to it on a CPU, once a chunk."""
    if left.dtype == total.dtype and not first:
        total.addmm_(left, right)
        return
    rounded = left.dtype != total.dtype and not left.is_cuda
    for block in _blocks(len(total)):
        if first and not rounded:
            _product(left[block], right, total[block])
            continue
        part = torch.empty_like(total[block], dtype=left.dtype if rounded else total.dtype)
        _product(left[block], right, part)
        if first:
            total[block] = part
        else:
            total[block].add_(part)  # += would then copy the sum onto itself


def _blocks(rows: int) -> list[slice]:
    return [slice(start, min(start + VOCABULARY_BLOCK, rows)) for start in range(0, rows, VOCABULARY_BLOCK)]
