"""What the loss costs over the products that nobody can avoid: `python tests/benchmarks/loss_ratio.py`.

Interleaved in one process, medians and spread over rounds; absolute times on a shared machine mean nothing. Columns: the
chunked loss with its gradients, and the reference on full logits through autograd, each over three products of
[T, D] x [D, V].
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable

import torch

from pipeline.contract.process import prepare_cpu_process
from stage2_student.loss import SparseTargets, distillation_loss, fused_distillation_loss


def inputs(tokens: int, width: int, vocabulary: int, k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, SparseTargets]:
    """Hidden states, head, labels and top-k targets of a random teacher."""
    torch.manual_seed(0)
    hidden, head = torch.randn(tokens, width), torch.randn(vocabulary, width) * 0.05
    weights, ids = (torch.randn(tokens, vocabulary) * 3).softmax(-1).topk(k)
    targets = SparseTargets(ids, weights, torch.ones_like(ids, dtype=torch.bool), 1 - weights.sum(-1))
    return hidden.requires_grad_(), head.requires_grad_(), torch.randint(0, vocabulary, (tokens,)), targets


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("tokens", 1024), ("width", 512), ("vocabulary", 49152), ("k", 64), ("rounds", 7), ("chunk", 512)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    prepare_cpu_process()
    hidden, head, labels, targets = inputs(a.tokens, a.width, a.vocabulary, a.k)
    plain, weight = hidden.detach(), head.detach()
    upstream = torch.randn(a.tokens, a.vocabulary)

    def floor() -> None:
        plain @ weight.T, upstream @ weight, upstream.T @ plain

    def chunked() -> None:
        torch.autograd.grad(fused_distillation_loss(hidden, head, labels, targets, chunk=a.chunk).loss, (hidden, head))

    def reference() -> None:
        torch.autograd.grad(distillation_loss(hidden @ head.T, labels, targets).loss, (hidden, head))

    rows = [[seconds(work) for work in (floor, chunked, reference)] for _ in range(a.rounds + 1)][1:]
    for name, column in (("chunked", 1), ("reference", 2)):
        ratios = sorted(row[column] / row[0] for row in rows)
        print(
            f"{name:10s} {statistics.median(ratios):.2f}x the three products (from {ratios[0]:.2f} to {ratios[-1]:.2f}, {a.rounds} rounds)"
        )
    print(f"T={a.tokens} D={a.width} V={a.vocabulary} k={a.k} chunk={a.chunk} float32, {torch.get_num_threads()} threads")
    print(f"peak memory of the process {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()
