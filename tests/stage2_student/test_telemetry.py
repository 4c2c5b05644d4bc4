"""What an update is said to cost: parts that add up, operations counted against torch's own counter, MFU only against a known peak."""

import time

import pytest
import torch
from runs import job, metrics
from students import tiny_student, tokens
from torch.utils.flop_counter import FlopCounterMode

from stage2_student.flops import document_flops
from stage2_student.peaks import peak_flops
from stage2_student.telemetry import StepClock, Telemetry
from stage2_student.train import train


def test_every_update_says_what_it_cost(root):
    chosen = job(root, curriculum="grow", name="said", checkpoint_interval=2, eval_interval=2)
    train(chosen)
    records = metrics(chosen.folder, "train")
    for record in records:
        parts = {key.rpartition("/")[2]: value for key, value in record.items() if key.startswith("perf/seconds/")}
        inside = sum(parts[part] for part in ("load", "compute", "update"))
        assert 0 < inside <= record["perf/seconds"] and inside > 0.5 * record["perf/seconds"]
        assert record["perf/loader_wait"] == pytest.approx(parts["load"] / record["perf/seconds"])
        assert record["perf/tokens_per_second"] == pytest.approx(record["tokens"] / record["perf/seconds"])
        assert 0 < record["perf/memory_gib"] < 64 and "perf/mfu" not in record  # a CPU has no peak
    between = [(record["phase_step"], "perf/seconds/checkpoint" in record, "perf/seconds/evaluate" in record) for record in records]
    assert between[:4] == [(1, False, True), (2, False, False), (3, True, True), (4, False, False)]  # told with the next update
    clipped = [record["optim/clipped"] for record in records[:4]]
    assert [record["optim/clip_fraction"] for record in records[:4]] == [sum(clipped[: n + 1]) / (n + 1) for n in range(4)]


def test_a_clock_adds_up_a_part_and_forgets_it():
    clock = StepClock()
    clock.start()
    for _ in range(2):
        with clock("load"):
            time.sleep(0.01)
    time.sleep(0.01)
    first, second = clock.stop(), clock.stop()
    assert 0.02 <= first["perf/seconds/load"] < first["perf/seconds"] - 0.009
    assert "perf/seconds/load" not in second and second["perf/loader_wait"] == 0


def trained_by(kind: str, blocks: int):
    """What a phase trains: all, or the last block only, or the last block and what else."""
    last = f"blocks.{blocks - 1}."
    return {
        "all": lambda name: not name.startswith("embed"),
        "new block": lambda name: name.startswith(last),
        "and head": lambda name: name.startswith((last, "lm_head.")),
        "and boundary norm": lambda name: name.startswith((last, "boundary_norm.")),
    }[kind]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("kind", ["all", "new block", "and head", "and boundary norm"])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_operations_are_those_that_torch_counts(family, kind, norm):
    """A first trained layer may save the gradient of its input, which is within the tolerance."""
    student, ids = tiny_student(family, norm=norm).train(), tokens(2, 40)
    student.set_attn_implementation("eager")
    trained, config = trained_by(kind, 3), student.config
    for name, parameter in student.named_parameters():
        parameter.requires_grad_(trained(name))
    with FlopCounterMode(display=False) as counter:
        student(ids).logits.square().sum().backward()
    through = config.num_hidden_layers if kind == "all" or (kind == "and boundary norm" and norm == "post") else config.layers_per_block
    # torch counts the whole square of attention, and the head on the last row too
    other_half = 2 * 40**2 * config.num_attention_heads * 8 * (config.num_hidden_layers + 2 * through)
    last_row = 2 * config.hidden_size * config.vocab_size * (2 + trained("lm_head.weight"))
    ours = document_flops(config, trained)(40) + other_half + last_row
    assert 2 * ours == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_mfu_is_the_share_of_a_known_peak():
    assert peak_flops("NVIDIA H100 80GB HBM3", torch.bfloat16) == 989.5e12
    assert peak_flops("NVIDIA H100 80GB HBM3", torch.float32) is None  # the table is of bfloat16
    assert peak_flops("NVIDIA H100", torch.bfloat16) is None  # nothing is guessed
    student = tiny_student()
    told = Telemetry(student.config, lambda name: True, torch.device("cpu"), torch.float32, ranks=2)
    assert told.peak is None
    told.peak = 1e9
    record = told.of_update({"perf/seconds": 0.5}, [40, 7], 45, clipped=False)
    flops = document_flops(student.config, lambda name: True)
    assert record["perf/mfu"] == pytest.approx((flops(40) + flops(7)) / (0.5 * 2 * 1e9))
