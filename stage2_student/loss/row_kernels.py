"""The dense passes over a chunk of logits: a log-sum-exp a row, then the gradient, in the logits' own memory where dtypes agree.

Each is written once, below, as plain torch. `compiled` runs it through torch.compile (a C++ compiler on CPU, triton on
CUDA), a single loop without temporaries; `eager` runs it as it stands, a few rows at a time; `triton` is written by hand,
for CUDA. Compiling costs half a minute when nothing is cached on the machine, five seconds a process after that: `auto`
compiles where a call is large enough, so the choice depends on shapes and machine alone, never on what ran before.
"""

import os
import shutil
import sysconfig
import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from pipeline.contract.errors import RunError

Kernels = Literal["auto", "eager", "compiled", "triton"]

COMPILED_FROM = 2**26
"""Logits of a call from which compiling is worth its seconds."""

RAN: set[str] = set()
"""Kernels that calls of this process got, by name, and "eager" where compiling failed; emptied by who keeps a record."""

EAGER_LOGITS = 2**20
"""Logits that an eager pass has temporaries of, at least one row."""


class RowKernels(NamedTuple):
    """Passes over C rows of V logits; every other argument is [C], in the precision that the sums have.

    Attributes:
        name: which of them.
        log_sum_exp: (logits [C, V], scale) -> [C], of logits * scale; -inf for a row of -inf.
        softmax: (out [C, V], logits [C, V], log_normalizer, factor): out = factor exp(logits - log_normalizer). `out` may be `logits`.
        two_softmaxes: (out, logits, log_normalizer, factor, scale, scaled_normalizer, scaled_factor): the sum of
            factor exp(logits - log_normalizer) and scaled_factor exp(scale logits - scaled_normalizer).
    """

    name: str
    log_sum_exp: Callable[..., Tensor]
    softmax: Callable[..., None]
    two_softmaxes: Callable[..., None]


def _log_sum_exp(logits: Tensor, scale: Tensor) -> Tensor:
    return (logits.to(scale.dtype) * scale[:, None]).logsumexp(-1)


def _softmax(out: Tensor, logits: Tensor, log_normalizer: Tensor, factor: Tensor) -> None:
    out.copy_((logits.to(factor.dtype) - log_normalizer[:, None]).exp() * factor[:, None])


def _two_softmaxes(
    out: Tensor, logits: Tensor, log_normalizer: Tensor, factor: Tensor, scale: Tensor, scaled_normalizer: Tensor, scaled_factor: Tensor
) -> None:
    z = logits.to(factor.dtype)
    plain = (z - log_normalizer[:, None]).exp() * factor[:, None]
    out.copy_(plain + (z * scale[:, None] - scaled_normalizer[:, None]).exp() * scaled_factor[:, None])


def choose_kernels(kernels: Kernels, logits: int, device: torch.device) -> RowKernels:
    """The kernels of a call with this many `logits` on `device`.

    Raises:
        RunError: kernels asked for by name that this machine cannot run.
    """
    small = kernels == "auto" and logits < COMPILED_FROM
    name = "eager" if small else available_kernels(kernels, device.type)
    RAN.add(name)
    return {"eager": _eager, "compiled": _compiled, "triton": _triton}[name]()


@cache
def available_kernels(kernels: Kernels, device: str) -> Kernels:
    """What `kernels` comes to here in a large call; `auto` falls back to eager and says so, once."""
    missing = _missing(device)
    if kernels == "triton" and (device != "cuda" or missing) and not os.environ.get("TRITON_INTERPRET"):
        raise RunError(f"loss_kernels=triton: needs CUDA and triton, here is {device}; use --set loss_kernels=auto")
    if kernels == "compiled" and missing:
        raise RunError(f"loss_kernels=compiled: {missing} not found; install it, or use --set loss_kernels=eager")
    if kernels == "auto" and missing:
        warnings.warn(f"{missing} not found: the loss runs uncompiled, which is slower", RuntimeWarning, stacklevel=2)
        return "eager"
    return "compiled" if kernels == "auto" else kernels


def _missing(device: str) -> str | None:
    """What torch.compile needs and does not find."""
    if device == "cuda":
        return None if find_spec("triton") else "triton"
    compiler = os.environ.get("CXX", "g++")
    if not shutil.which(compiler):
        return f"the C++ compiler {compiler}"
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    return None if header.exists() else str(header)


@cache
def _eager() -> RowKernels:
    return RowKernels("eager", *(_some_rows_at_a_time(function) for function in (_log_sum_exp, _softmax, _two_softmaxes)))


def _some_rows_at_a_time(function: Callable) -> Callable:
    def run(*arguments: Tensor) -> Tensor | None:
        rows = max(1, EAGER_LOGITS // arguments[0].shape[1])
        parts = [function(*part) for part in zip(*(argument.split(rows) for argument in arguments), strict=True)]
        return None if parts[0] is None else torch.cat(parts)

    return run


@cache
def _compiled() -> RowKernels:
    """Sizes are symbolic: a graph for each dtype, and one for a single row, which torch always specialises."""
    eager = _eager()
    pairs = ((_log_sum_exp, eager.log_sum_exp), (_softmax, eager.softmax), (_two_softmaxes, eager.two_softmaxes))
    return RowKernels("compiled", *(_or_else(torch.compile(mine, dynamic=True, fullgraph=True), theirs) for mine, theirs in pairs))


def _or_else(compiled: Callable, eager: Callable) -> Callable:
    """`compiled` until it cannot be compiled, which fails before it writes anything; then `eager`."""
    broken = False

    def run(*arguments: Tensor) -> Tensor | None:
        nonlocal broken
        if not broken:
            try:
                return compiled(*arguments)
            except torch._dynamo.exc.BackendCompilerFailed as error:
                broken = True
                RAN.add("eager")
                reason = " ".join(str(error).split())[:200]
                warnings.warn(f"the loss runs uncompiled, which is slower: {reason}", RuntimeWarning, stacklevel=2)
        return eager(*arguments)

    return run


@cache
def _triton() -> RowKernels:
    from stage2_student.loss import triton_kernels as by_hand

    return RowKernels("triton", by_hand.log_sum_exp, by_hand.softmax, by_hand.two_softmaxes)
