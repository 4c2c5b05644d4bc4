"""What padding costs on lengths like FineWeb-Edu's: `python tests/benchmarks/padding.py`.

Log-normal lengths (mean 972, cut at 8,192). First the share of real tokens in the micro-batches that training pads, beside plain
right-padding of the whole batch and of eights; then tokens a second of a small student over these, and over documents packed for
attention of variable length, lengths an eighth of that, interleaved in one process.
"""

import argparse
import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.process import prepare_cpu_process
from stage2_student.loss import IGNORE_INDEX, SparseTargets, fused_distillation_loss
from stage2_student.micro_batches import Plan, padding_efficiency, plan_packed, plan_padded
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.model.varlen import VARLEN

MEAN, CAP, SIGMA = 972, 8192, 1.0
VOCABULARY, K = 2048, 16


def lengths(count: int, random: np.random.Generator, scale: int = 1) -> list[int]:
    """Input tokens of documents; the mean before the cut is chosen so that it is MEAN after it."""
    drawn = random.lognormal(np.log(MEAN * 1.035) - SIGMA**2 / 2, SIGMA, count)
    return [max(2, int(length) // scale) for length in np.minimum(drawn, CAP)]


def plain(sizes: Sequence[int], batch: int) -> Plan:
    """Documents as they come, `batch` at a time, padded to the longest of them."""
    return [[list(range(start, min(start + batch, len(sizes)))) for start in range(0, len(sizes), batch)]]


HEADER = "batch ranks  padded (worst)  fewest in budget  all at once  by eights  micro-batches  plan, CPU ms"


def efficiencies(batch: int, ranks: int, steps: int, settings: StudentManifest) -> str:
    random, rows = np.random.default_rng(0), []
    for _ in range(steps):
        sizes = lengths(batch, random)
        started = time.process_time()
        plan = plan_padded(sizes, ranks, settings.micro_batch_tokens, settings.micro_batch_overhead)
        seconds = time.process_time() - started
        fewest = plan_padded(sizes, ranks, settings.micro_batch_tokens)
        ways = [padding_efficiency(sizes, each) for each in (plan, fewest, plain(sizes, batch), plain(sizes, 8))]
        rows.append((*ways, len(plan[0]), 1e3 * seconds, sum(sizes)))
    ours, fewest_, whole, eights, count, milliseconds, _ = (statistics.fmean(column) for column in zip(*rows))
    worst = min(row[0] for row in rows)
    shares = f"{ours:.3f} ({worst:.3f}) {fewest_:16.3f} {whole:12.3f} {eights:10.3f}"
    return f"{batch:5d} {ranks:5d}  {shares} {count:14.1f} {milliseconds:13.2f}"


def student() -> BlockStackForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    rope = {"rope_type": "default", "rope_theta": 10_000.0}
    more = {"rms_norm_eps": 1e-6, "max_position_embeddings": CAP, "hidden_act": "silu", "attention_bias": False, "attention_dropout": 0.0}
    depth = {"blocks": 1, "active_blocks": 1, "layers_per_block": 3}
    config = BlockStackConfig(family="qwen3", vocab_size=VOCABULARY, rope_parameters=rope, **sizes, **more, **depth)
    model = BlockStackForCausalLM(config)
    model.set_attn_implementation(VARLEN)
    return model


def step(model: BlockStackForCausalLM, sizes: Sequence[int], plan: Plan, packed: bool = False) -> float:
    """CPU seconds of forward and backward over a plan's micro-batches."""
    random, started = torch.Generator().manual_seed(0), time.process_time()
    for members in plan[0]:
        mine = [sizes[place] for place in members]
        real = torch.arange(max(mine)) < torch.tensor(mine)[:, None]
        ids = torch.randint(VOCABULARY, real.shape, generator=random)
        labels = ids.roll(-1, 1).masked_fill(torch.arange(max(mine)) >= torch.tensor(mine)[:, None] - 1, IGNORE_INDEX)
        if packed:
            ids, labels = ids[real][None], labels[real][None]
        document_lengths, rows = tuple(mine) if packed else None, labels.numel()
        weights = torch.full((rows, K), 0.9 / K)
        valid, tail = torch.ones(rows, K, dtype=torch.bool), torch.full((rows,), 0.1)
        targets = SparseTargets(torch.arange(K).expand(rows, K), weights, valid, tail)
        model(
            ids,
            document_lengths=document_lengths,
            head_loss=lambda h, w, y=labels, t=targets: fused_distillation_loss(h.flatten(0, 1), w, y.flatten(), t),
        ).loss.backward()
    model.zero_grad()
    return time.process_time() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("steps", 100), ("rounds", 7), ("scale", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    prepare_cpu_process()
    settings = StudentManifest()
    print(HEADER)
    for batch, ranks in ((64, 1), (64, 2), (64, 8), (256, 1), (1024, 1), (1024, 64)):
        print(efficiencies(batch, ranks, max(3, a.steps * 64 // batch), settings))
    model, random, budget = student(), np.random.default_rng(1), settings.micro_batch_tokens // a.scale
    rates: dict[str, list[float]] = {"packed": [], "padded": [], "eights": []}
    for round_ in range(a.rounds + 1):
        sizes = lengths(64, random, a.scale)
        seconds = {
            "packed": step(model, sizes, plan_packed(sizes, 1, budget), packed=True),
            "padded": step(model, sizes, plan_padded(sizes, 1, budget, settings.micro_batch_overhead // a.scale)),
            "eights": step(model, sizes, plain(sizes, 8)),
        }
        if round_:
            for way, each in seconds.items():
                rates[way].append(sum(sizes) / each)
    print(", ".join(f"{way} {statistics.median(each):,.0f}" for way, each in rates.items()), "tokens a CPU second;")
    print(f"packed over padded {ratio(rates, 'packed', 'padded')}, padded over right-padded by eights {ratio(rates, 'padded', 'eights')}")


def ratio(rates: dict[str, list[float]], ours: str, theirs: str) -> str:
    """Median and range over the rounds."""
    each = sorted(mine / other for mine, other in zip(rates[ours], rates[theirs]))
    return f"{statistics.median(each):.2f}x ({each[0]:.2f} to {each[-1]:.2f}, {len(each)} rounds)"


if __name__ == "__main__":
    main()
