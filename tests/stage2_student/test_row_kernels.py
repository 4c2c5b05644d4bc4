"""Every kind of row kernel gives what plain float64 torch gives, and the loss the same through each; compiling happens once."""

import os
import warnings
from importlib.util import find_spec

import pytest
import torch
from losses import TAILS, distance, fused, gradients, make_case, reference

from pipeline.contract.errors import RunError
from stage2_student.loss import row_kernels
from stage2_student.loss.row_kernels import available_kernels, choose_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
TRITON = pytest.param(
    "triton",
    marks=pytest.mark.skipif(
        not find_spec("triton") or (DEVICE == "cpu" and not INTERPRETED), reason="needs triton, and CUDA or its interpreter"
    ),
)
KERNELS = pytest.mark.parametrize("kernels", ["eager", "compiled", TRITON])
CPU = torch.device("cpu")
WITHIN = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-8}


def rows(dtype: torch.dtype, count: int = 5, vocabulary: int = 5003) -> list[torch.Tensor]:
    """Logits with -inf in them and one row of nothing else, then six arguments of a row each, as precise as the sums."""
    g = torch.Generator().manual_seed(0)
    logits = 9 * torch.randn(count, vocabulary, generator=g, dtype=torch.float64)
    logits[:, ::7], logits[1] = -torch.inf, -torch.inf
    precise = torch.promote_types(dtype, torch.float32)
    others = [torch.rand(count, generator=g, dtype=torch.float64).to(precise) + shift for shift in (20, 0.1, 0.5, 9, -0.7)]
    return [logits.to(DEVICE, dtype), *(other.to(DEVICE) for other in others)]


@KERNELS
@pytest.mark.parametrize("dtype", WITHIN)
@torch.no_grad()  # as in the loss: torch.compile has graphs for either
def test_a_kernel_is_plain_torch_in_float64(kernels, dtype):
    logits, normalizer, factor, scale, scaled_normalizer, scaled_factor = rows(dtype)
    z, *exact = (part.double()[:, None] if part.ndim == 1 else part.double() for part in (logits, normalizer, factor, scale))
    chosen = choose_kernels(kernels, 0, logits.device)
    sums = chosen.log_sum_exp(logits, scale)
    assert chosen.name == kernels and sums.dtype == scale.dtype and sums[1] == -torch.inf
    torch.testing.assert_close(sums.double(), (z * exact[2]).logsumexp(-1), rtol=min(WITHIN[dtype], 1e-6), atol=0)
    one, two = (z - exact[0]).exp() * exact[1], (z * exact[2] - scaled_normalizer.double()[:, None]).exp() * scaled_factor.double()[:, None]
    if kernels != "compiled" or dtype == torch.float64:  # a graph more
        out = logits.clone()
        chosen.two_softmaxes(out, out, normalizer, factor, scale, scaled_normalizer, scaled_factor)
        torch.testing.assert_close(out.double(), one + two, rtol=10 * WITHIN[dtype], atol=10 * WITHIN[dtype] * two.abs().max().item())
    chosen.softmax(logits, logits, normalizer, factor)
    torch.testing.assert_close(logits.double(), one, rtol=10 * WITHIN[dtype], atol=1e-30)


@KERNELS
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_the_loss_equals_the_reference_through_each(kernels, tail, temperature):
    case = make_case()
    options = {"tail": tail, "temperature": temperature}
    mine, theirs = fused(case, kernels=kernels, **options), reference(case, **options)
    assert all(torch.isclose(a, b, rtol=1e-12, atol=1e-12) for a, b in zip(mine, theirs, strict=True))
    for a, b in zip(gradients(case, mine.loss, -3.5), gradients(case, theirs.loss, -3.5), strict=True):
        assert torch.isfinite(a).all() and distance(a, b) <= 1e-12


@KERNELS
def test_two_calls_are_bit_equal(kernels):
    """A resumed run is, where this is."""
    case = make_case(dtype=torch.bfloat16, rows=40, vocabulary=5003)
    calls = [gradients(case, fused(case, kernels=kernels, chunk=16).loss) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*calls, strict=True))


def graphs() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_ragged_batches_compile_nothing_new():
    def call(count: int, vocabulary: int, kept: int) -> None:
        case = make_case(dtype=torch.float32, rows=count, vocabulary=vocabulary)
        parts = [part[:, :kept] if part.ndim == 2 else part for part in case.targets]
        fused(
            case._replace(targets=case.targets._replace(**dict(zip(case.targets._fields, parts, strict=True)))),
            kernels="compiled",
            chunk=20,
        )

    call(13, 701, 6)
    before = graphs()
    for count, vocabulary, kept in [(14, 701, 5), (20, 701, 6), (67, 701, 2), (9, 64, 1), (41, 97, 6)]:
        call(count, vocabulary, kept)
    assert before > 0 and graphs() == before


def test_small_calls_are_not_compiled():
    assert choose_kernels("auto", row_kernels.COMPILED_FROM - 1, CPU).name == "eager"
    assert choose_kernels("auto", row_kernels.COMPILED_FROM, CPU).name == "compiled"


@pytest.fixture
def without_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    available_kernels.cache_clear()
    yield
    available_kernels.cache_clear()


def test_without_a_compiler_it_is_said_once_and_goes_on(without_compiler):
    with pytest.warns(RuntimeWarning, match="no-such-compiler not found"):
        assert choose_kernels("auto", row_kernels.COMPILED_FROM, CPU).name == "eager"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose_kernels("auto", row_kernels.COMPILED_FROM, CPU).name == "eager"


@pytest.mark.parametrize("kernels", ["compiled", "triton"])
def test_kernels_asked_for_by_name_are_not_replaced(without_compiler, kernels, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RunError, match=f"loss_kernels={kernels}: .*use --set loss_kernels="):
        available_kernels(kernels, "cpu")


def test_a_compiler_that_fails_is_said_once_and_costs_nothing_but_speed():
    def refuse(graph, example):
        raise OSError("no space left for what is compiled")

    eager = choose_kernels("eager", 0, CPU)
    softmax = row_kernels._or_else(torch.compile(row_kernels._softmax, backend=refuse, dynamic=True), eager.softmax)
    logits, normalizer, factor = rows(torch.float32)[:3]
    mine, theirs = torch.empty_like(logits), torch.empty_like(logits)
    eager.softmax(theirs, logits, normalizer, factor)
    row_kernels.RAN.clear()
    with pytest.warns(RuntimeWarning, match="runs uncompiled.*no space left"):
        softmax(mine, logits, normalizer, factor)
    assert torch.equal(mine, theirs) and {"eager"} == row_kernels.RAN  # a run's record says so
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        softmax(mine, logits, normalizer, factor)
