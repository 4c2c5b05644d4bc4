"""The row kernels by hand, for CUDA: `row_kernels.py` in triton, one program a row for the sums, one a block for the gradient.

The log-sum-exp keeps a running maximum and sum a lane, so it reads the logits once. Imported only where it is asked for
(`loss_kernels=triton`); TRITON_INTERPRET=1 runs it on a CPU.
"""
# mypy: disable-error-code="no-untyped-def"

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


def log_sum_exp(logits: Tensor, scale: Tensor) -> Tensor:
    found = torch.empty_like(scale)
    _log_sum_exp[(len(logits),)](found, logits, scale, logits.shape[1], logits.stride(0), BLOCK=BLOCK)
    return found


def softmax(out: Tensor, logits: Tensor, log_normalizer: Tensor, factor: Tensor) -> None:
    _launch(out, logits, log_normalizer, factor, factor, log_normalizer, factor, two=False)


def two_softmaxes(
    out: Tensor, logits: Tensor, log_normalizer: Tensor, factor: Tensor, scale: Tensor, scaled_normalizer: Tensor, scaled_factor: Tensor
) -> None:
    _launch(out, logits, log_normalizer, factor, scale, scaled_normalizer, scaled_factor, two=True)


def _launch(out: Tensor, logits: Tensor, *rows: Tensor, two: bool) -> None:
    count, vocabulary = logits.shape
    grid = (count, triton.cdiv(vocabulary, BLOCK))
    _softmaxes[grid](out, logits, *rows, vocabulary, out.stride(0), logits.stride(0), TWO=two, BLOCK=BLOCK)


@triton.jit
def _log_sum_exp(found, logits, scale, vocabulary, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # a row's offset may pass 2**31
    factor = tl.load(scale + row)
    lanes = tl.arange(0, BLOCK)
    largest = tl.full([BLOCK], float("-inf"), factor.dtype)
    total = tl.zeros([BLOCK], factor.dtype)
    for start in range(0, vocabulary, BLOCK):
        inside = start + lanes < vocabulary
        z = tl.load(logits + row * stride + start + lanes, mask=inside, other=float("-inf")).to(factor.dtype) * factor
        above = tl.maximum(largest, z)
        shift = tl.where(above == float("-inf"), 0.0, above)  # -inf - -inf is no number
        total = total * tl.exp(largest - shift) + tl.exp(z - shift)
        largest = above
    top = tl.max(largest, 0)
    shift = tl.where(top == float("-inf"), 0.0, top)
    tl.store(found + row, tl.log(tl.sum(total * tl.exp(largest - shift), 0)) + shift)


@triton.jit
def _softmaxes(
    out,
    logits,
    log_normalizer,
    factor,
    scale,
    scaled_normalizer,
    scaled_factor,
    vocabulary,
    out_stride,
    stride,
    TWO: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(factor + row)
    z = tl.load(logits + row * stride + at, mask=at < vocabulary, other=float("-inf")).to(weight.dtype)
    found = tl.exp(z - tl.load(log_normalizer + row)) * weight
    if TWO:
        scaled = z * tl.load(scale + row) - tl.load(scaled_normalizer + row)
        found += tl.exp(scaled) * tl.load(scaled_factor + row)
    tl.store(out + row * out_stride + at, found.to(out.dtype.element_ty), mask=at < vocabulary)
