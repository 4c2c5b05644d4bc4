"""What padding costs on lengths like FineWeb-Edu's: `python tests/benchmarks/padding.py`.

Log-normal lengths (mean 972, cut at 8,192). First the share of real tokens in the micro-batches that training makes, beside plain
right-padding of the whole batch and of eights; then tokens a second of a small student over both, lengths an eighth of that,
interleaved in one process.
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
from stage2_student.micro_batches import Plan, padding_efficiency, plan_step
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.student import BlockStackForCausalLM

MEAN, CAP, SIGMA = 972, 8192, 1.0
VOCABULARY, K = 2048, 16


def lengths(count: int, random: np.random.Generator, scale: int = 1) -> list[int]:
    """Input tokens of documents; the mean before the cut is chosen so that it is MEAN after it."""
    drawn = random.lognormal(np.log(MEAN * 1.035) - SIGMA**2 / 2, SIGMA, count)
    return [max(2, int(length) // scale) for length in np.minimum(drawn, CAP)]


def plain(sizes: Sequence[int], batch: int) -> Plan:
    """Documents as they come, `batch` at a time, padded to the longest of them."""
    return [[list(range(start, min(start + batch, len(sizes)))) for start in range(0, len(sizes), batch)]]


HEADER = "batch ranks  ours  (worst)  fewest in budget  all at once  by eights  micro-batches  plan, CPU ms"


def efficiencies(batch: int, ranks: int, steps: int, settings: StudentManifest) -> str:
    random, rows = np.random.default_rng(0), []
    for _ in range(steps):
        sizes = lengths(batch, random)
        started = time.process_time()
        plan = plan_step(sizes, ranks, settings.micro_batch_tokens, settings.micro_batch_overhead)
        seconds = time.process_time() - started
        fewest = plan_step(sizes, ranks, settings.micro_batch_tokens)
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
    return BlockStackForCausalLM(config)


def step(model: BlockStackForCausalLM, sizes: Sequence[int], plan: Plan) -> float:
    """CPU seconds of forward and backward over a plan's micro-batches."""
    random, started = torch.Generator().manual_seed(0), time.process_time()
    for members in plan[0]:
        longest = max(sizes[place] for place in members)
        ids = torch.randint(VOCABULARY, (len(members), longest), generator=random)
        labels = ids.roll(-1, 1)
        for row, place in enumerate(members):
            labels[row, sizes[place] - 1 :] = IGNORE_INDEX
        rows = labels.numel()
        weights = torch.full((rows, K), 0.9 / K)
        valid, tail = torch.ones(rows, K, dtype=torch.bool), torch.full((rows,), 0.1)
        targets = SparseTargets(torch.arange(K).expand(rows, K), weights, valid, tail)
        model(ids, head_loss=lambda h, w, y=labels, t=targets: fused_distillation_loss(h.flatten(0, 1), w, y.flatten(), t)).loss.backward()
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
    model, random, ratios, rates = student(), np.random.default_rng(1), [], []
    for round_ in range(a.rounds + 1):
        sizes = lengths(64, random, a.scale)
        ours = step(model, sizes, plan_step(sizes, 1, settings.micro_batch_tokens // a.scale, settings.micro_batch_overhead // a.scale))
        eights = step(model, sizes, plain(sizes, 8))
        if round_:
            ratios.append(eights / ours)
            rates.append((sum(sizes) / ours, sum(sizes) / eights))
    ratios.sort()
    mine, theirs = (statistics.median(column) for column in zip(*rates))
    print(
        f"tokens a CPU second: {mine:,.0f} ours, {theirs:,.0f} right-padded by eights: "
        f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}, {a.rounds} rounds)"
    )


if __name__ == "__main__":
    main()
