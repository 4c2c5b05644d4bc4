"""What the loss costs over the products that nobody can avoid: `python tests/benchmarks/loss_ratio.py`.

CPU seconds of one thread, interleaved in one process, median (least, largest) over rounds; absolute times on a shared
machine mean nothing. The floor is three `torch.mm` of [T, D] x [D, V] in the inputs' dtype. Beside the fused loss stand

    CE alone     the same code with no entry kept
    naive        a bucket loss as it is usually written: cross-entropy and log-softmax of full logits in float32, at half the tokens
    one softmax  the leanest that autograd can do: both terms from one log-softmax
    torch.func   the same, a chunk at a time through torch.func.grad_and_value, as Liger's distillation losses are built

Memory is the peak of a process of its own over what it holds before the call.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from pipeline.contract.process import prepare_cpu_process
from stage2_student.loss import SparseTargets, fused_distillation_loss

ALPHA, GAMMA = 0.7, 0.3
Inputs = tuple[Tensor, Tensor, Tensor, SparseTargets]
Works, Pairs = dict[str, Callable[[], None]], list[tuple[str, str]]


def inputs(tokens: int, width: int, vocabulary: int, k: int, dtype: torch.dtype) -> Inputs:
    """Hidden states [T, D], head [V, D], labels and top-k targets of a random teacher."""
    torch.manual_seed(0)
    hidden, head = torch.randn(tokens, width).to(dtype), (torch.randn(vocabulary, width) * 0.05).to(dtype)
    weights, ids = torch.empty(tokens, k), torch.empty(tokens, k, dtype=torch.int64)
    noise = torch.empty(256, vocabulary)  # one memory for all rows: what is kept between them would pin freed blocks
    for start in range(0, tokens, len(noise)):
        rows = slice(start, min(start + len(noise), tokens))
        some = noise[: rows.stop - start].normal_(0, 3)
        torch.topk(some, k, out=(weights[rows], ids[rows]))
        weights[rows] = (weights[rows] - some.logsumexp(-1, keepdim=True)).exp()
    targets = SparseTargets(ids, weights, torch.ones_like(ids, dtype=torch.bool), 1 - weights.sum(-1))
    return hidden.requires_grad_(), head.requires_grad_(), torch.randint(0, vocabulary, (tokens,)), targets


def first(case: Inputs, tokens: int) -> Inputs:
    hidden, head, labels, targets = case
    return hidden.detach()[:tokens].requires_grad_(), head, labels[:tokens], targets.rows(slice(tokens))


def floor(case: Inputs) -> None:
    hidden, head = case[0].detach(), case[1].detach()
    logits = hidden @ head.T
    logits @ head, logits.T @ hidden


def fused(case: Inputs, **options) -> None:
    hidden, head = case[:2]
    torch.autograd.grad(fused_distillation_loss(*case, alpha=ALPHA, gamma=GAMMA, **options).loss, (hidden, head))


def nothing_kept(case: Inputs) -> Inputs:
    hidden, head, labels, targets = case
    one = targets.ids[:, :1]
    return hidden, head, labels, SparseTargets(one, torch.zeros(one.shape), torch.zeros_like(one, dtype=torch.bool), torch.ones(len(one)))


def naive_sum(hidden: Tensor, head: Tensor, labels: Tensor, targets: SparseTargets) -> Tensor:
    """A line for each term."""
    logits = (hidden @ head.T).float()
    kl = bucket_kl(logits.log_softmax(-1).gather(-1, targets.ids), targets)
    return (ALPHA * kl).sum() + GAMMA * torch.nn.functional.cross_entropy(logits, labels, reduction="sum")


def bucket_sum(hidden: Tensor, head: Tensor, labels: Tensor, targets: SparseTargets) -> Tensor:
    """One log-softmax, one gather."""
    log_p = (hidden @ head.T).float().log_softmax(-1).gather(-1, torch.cat([targets.ids, labels[:, None]], -1))
    return (ALPHA * bucket_kl(log_p[:, :-1], targets) - GAMMA * log_p[:, -1]).sum()


def bucket_kl(kept: Tensor, targets: SparseTargets) -> Tensor:
    """As it is usually written: the student's tail as 1 - sum."""
    tail = torch.log1p(-kept.exp().sum(-1).clamp_max(1 - 1e-6))
    kl = (torch.xlogy(targets.weights, targets.weights) - targets.weights * kept).sum(-1)
    return kl + torch.xlogy(targets.tail_mass, targets.tail_mass) - targets.tail_mass * tail


def through_autograd(case: Inputs, total: Callable[..., Tensor]) -> None:
    torch.autograd.grad(total(*case) / len(case[0]), case[:2])


def through_torch_func(case: Inputs, chunk: int) -> None:
    hidden, head, labels, targets = (part.detach() if isinstance(part, Tensor) else part for part in case)
    step = torch.func.grad_and_value(bucket_sum, argnums=(0, 1))
    d_hidden, d_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=torch.float32)
    for start in range(0, len(hidden), chunk):
        rows = slice(start, start + chunk)
        (d_hidden[rows], part), _ = step(hidden[rows], head, labels[rows], targets.rows(rows))
        d_head += part
    d_head.to(head.dtype)


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def against_the_floor(case: Inputs, chunk: int) -> tuple[Works, Pairs]:
    works = {
        "floor": partial(floor, case),
        "bucket": partial(fused, case, chunk=chunk),
        "sampled": partial(fused, case, chunk=chunk, tail="sampled"),
        "CE alone": partial(fused, nothing_kept(case), chunk=chunk),
    }
    return works, [(name, "floor") for name in ("bucket", "sampled", "CE alone")] + [("bucket", "CE alone"), ("sampled", "CE alone")]


def against_others(case: Inputs, chunk: int) -> tuple[Works, Pairs]:
    half = first(case, len(case[0]) // 2)
    works = {
        "bucket, T/2": partial(fused, half, chunk=chunk),
        "naive, T/2": partial(through_autograd, half, naive_sum),
        "one softmax, T/2": partial(through_autograd, half, bucket_sum),
        "torch.func, T/2": partial(through_torch_func, half, min(chunk, 1024)),
        "uncompiled, T/2": partial(fused, half, chunk=chunk, kernels="eager"),
    }
    return works, [(name, "bucket, T/2") for name in list(works)[1:]]


def ratios(case: Inputs, rounds: int, chunk: int, group: str) -> None:
    """Print pairs of the same round; a first round is thrown away."""
    works, pairs = GROUPS[group](case, chunk)
    taken = [{name: seconds(work) for name, work in works.items()} for _ in range(rounds + 1)][1:]
    for above, below in pairs:
        show(f"{above} / {below}", [row[above] / row[below] for row in taken])
    print(f"{'peak of this process':30s} {resident('VmHWM'):.1f} GB", flush=True)


GROUPS = {"floor": against_the_floor, "others": against_others}


def show(name: str, values: list[float]) -> None:
    print(f"{name:30s} {statistics.median(values):.3f}  ({min(values):.3f}, {max(values):.3f})", flush=True)


def resident(key: str) -> float:
    """VmRSS or VmHWM in GB."""
    status = Path("/proc/self/status").read_text()
    return int(status.split(f"{key}:")[1].split()[0]) * 1024 / 1e9


def print_extra_memory(case: Inputs, chunk: int) -> None:
    """For a process of its own: the peak of one call over what is held before it, compilers included."""
    fused(first(case, 2), chunk=chunk, kernels="compiled")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts from here
    before = resident("VmRSS")
    fused(case, chunk=chunk, kernels="compiled")
    print(f"{resident('VmHWM') - before:.2f}")


def in_a_process_of_its_own(arguments: argparse.Namespace, part: str, tokens: int) -> str:
    names = ("width", "vocabulary", "k", "chunk", "dtype", "rounds")
    sizes = [f"--{name}={getattr(arguments, name)}" for name in names]
    return subprocess.check_output([sys.executable, __file__, f"--part={part}", f"--tokens={tokens}", *sizes], text=True).rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 4096), ("width", 512), ("vocabulary", 151_936), ("k", 64), ("rounds", 7), ("chunk", 2048)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--part", choices=[*GROUPS, "memory"], help="one part only, in this process")
    a = parser.parse_args()
    if a.part:
        return one_part(a)
    print(f"T={a.tokens} D={a.width} V={a.vocabulary} k={a.k} chunk={a.chunk} {a.dtype}, 1 thread, {a.rounds} rounds", flush=True)
    for tokens in (a.tokens // 2, a.tokens, 2 * a.tokens):
        print(f"extra memory at T={tokens:<12d} {in_a_process_of_its_own(a, 'memory', tokens)} GB", flush=True)
    for group in GROUPS:
        print(in_a_process_of_its_own(a, group, a.tokens), flush=True)
    return None


def one_part(a: argparse.Namespace) -> None:
    if a.part == "floor":  # kept memory adds up in "others", and hides what a call needs in "memory"
        prepare_cpu_process()
    torch.set_num_threads(1)
    case = inputs(a.tokens, a.width, a.vocabulary, a.k, getattr(torch, a.dtype))
    if a.part == "memory":
        print_extra_memory(case, a.chunk)
    else:
        ratios(case, a.rounds, a.chunk, a.part)


if __name__ == "__main__":
    main()
