"""What is watched while a run trains: written down once, counted in the result, the same after a resume."""

import json
import math
from typing import Any

import pytest
import torch
from runs import equal_states, job, metrics, train_arguments
from safetensors.torch import load_file

from stage2_student import train as loop
from stage2_student.engine import StudentEngine
from stage2_student.guard_rails import SPIKE_LEAST, SPIKE_WINDOW, GuardRails, guard_counts, passes_ended
from stage2_student.job import StudentJob
from stage2_student.train import train


class Crash(Exception):
    """Stands for anything that ends a process between two records."""


def poisoned(at: int, monkeypatch) -> None:
    """Make the gradient of the run's update `at` (from 1) a NaN, in every engine."""
    done = [0]

    class Poisoned(StudentEngine):
        def backward(self, loss: torch.Tensor, *, last: bool) -> None:
            super().backward(loss * (math.nan if last and done[0] + 1 == at else 1.0), last=last)

        def step(self, learning_rate: float) -> float:
            done[0] += 1
            return super().step(learning_rate)

    monkeypatch.setattr(loop, "StudentEngine", Poisoned)


@pytest.mark.parametrize(("zero", "precision"), [(0, "float32"), (1, "bfloat16"), (2, "float32"), (3, "float32")])
def test_a_step_that_is_not_finite_moves_nothing_and_the_run_goes_on(root, monkeypatch, zero, precision):
    """DeepSpeed#8415: stages 1 to 3 leave such a step out silently, and without ZeRO every weight would be a NaN."""
    chosen = job(root, zero=zero, precision=precision, steps=4, snapshot_interval=1, eval_interval=10)
    with monkeypatch.context() as patch:
        poisoned(3, patch)
        result = train(chosen)
    weights = [*(snapshot(chosen, step) for step in (1, 2, 3)), load_file(chosen.record.phase(0) / "model.safetensors")]
    assert [equal_states(*pair) for pair in zip(weights, weights[1:], strict=False)] == [False, True, False]
    assert all(torch.isfinite(tensor).all() for tensor in weights[-1].values())
    assert [record["step"] for record in metrics(chosen.folder, "train")] == [1, 2, 4]
    (guard,) = [record for record in metrics(chosen.folder, "guard") if record["guard"] == "nonfinite"]
    assert guard["step"] == 3 and len(guard["documents"]) == 4 and math.isfinite(guard["loss"])
    assert result["guards"]["nonfinite"] == 1 and result["optimizer_steps"] == 3 and result["steps_executed"] == 4


def snapshot(chosen: StudentJob, step: int) -> dict[str, torch.Tensor]:
    return load_file(chosen.record.snapshots / f"step-{step:08d}/model.safetensors")


def test_no_checkpoint_is_due_after_it_and_a_resumed_run_counts_on(root, monkeypatch):
    chosen = job(root, steps=6, checkpoint_interval=2, nonfinite_limit=1)

    def crash(record: dict[str, Any]) -> None:
        if record["kind"] == "train" and record["step"] == 5:
            raise Crash

    with monkeypatch.context() as patch, pytest.raises(Crash):
        poisoned(2, patch)
        train(chosen, crash)
    assert [path.name for path in chosen.record.checkpoints.glob("step-*")] == ["step-00000004"]
    with monkeypatch.context() as patch, pytest.raises(loop.RunError, match="nonfinite_limit=1"):
        poisoned(1, patch)  # of this start: step 5
        train(chosen)
    result = train(chosen)  # the checkpoint is of before the second one
    assert result["resumed_from"] == 4 and result["guards"]["nonfinite"] == 1 and result["starts"] == 3
    ends = [start["ended"] for start in json.loads((chosen.folder / "provenance.json").read_text())]
    assert ends[0].startswith("Crash") and "nonfinite_limit=1" in ends[1] and ends[2] == "finished"


# --- spikes ---


def rails(losses: list[float], phase: int = 0) -> GuardRails:
    return GuardRails("run", 0, [{"kind": "train", "phase": phase, "train/loss": loss} for loss in losses])


NOISE = [2.0 + 0.1 * (-1) ** i for i in range(SPIKE_WINDOW)]  # mean 2, deviation 0.1


@pytest.mark.parametrize(("loss", "spikes"), [(2.59, False), (2.61, True), (0.0, False)])
def test_a_spike_is_six_deviations_above_the_mean(loss, spikes):
    found = rails(NOISE).spike(0, loss)
    assert (found is not None) == spikes
    if found:
        assert found["mean"] == pytest.approx(2.0) and found["deviation"] == pytest.approx(0.1) and found["train/loss"] == loss


def test_few_losses_and_another_phase_are_no_ground():
    assert rails(NOISE[: SPIKE_LEAST - 1]).spike(0, 99.0) is None
    assert rails(NOISE[:SPIKE_LEAST]).spike(0, 99.0) is not None
    assert rails(NOISE).spike(1, 99.0) is None  # a phase begins where its append puts it


def test_a_resumed_watch_sees_what_one_sees_that_never_stopped():
    losses = [2.0 + math.sin(i * i) / 10 + (5.0 if i in (150, 260) else 0.0) for i in range(300)]
    whole = rails([])
    seen = [i for i, loss in enumerate(losses) if whole.spike(0, loss)]
    resumed = rails(losses[:200])
    assert seen == [150, 260] and [i for i, loss in enumerate(losses[200:], 200) if resumed.spike(0, loss)] == [260]


def test_a_spike_is_on_record_and_counted(root, monkeypatch):
    """The loss itself is watched: here the bar is put below it."""
    monkeypatch.setattr("stage2_student.guard_rails.SPIKE_LEAST", 2)
    monkeypatch.setattr("stage2_student.guard_rails.SPIKE_SIGMAS", -50.0)
    chosen = job(root, steps=4, eval_interval=10)
    result = train(chosen)
    spikes = [record for record in metrics(chosen.folder, "guard") if record["guard"] == "loss_spike"]
    assert [record["step"] for record in spikes] == [3, 4] and result["guards"]["loss_spike"] == 2
    losses = {record["step"]: record["train/loss"] for record in metrics(chosen.folder, "train")}
    assert all(record["train/loss"] == losses[record["step"]] for record in spikes)


# --- the range's end ---


@pytest.mark.parametrize(("position", "count", "ends"), [(0, 23, 0), (0, 24, 1), (23, 1, 1), (24, 4, 0), (20, 52, 3)])
def test_how_often_the_range_ends(position, count, ends):
    assert passes_ended(position, count, 24) == ends


def test_the_end_of_the_range_is_on_record(root, pipeline):
    chosen = job(root, steps=8, global_batch_size=7, eval_interval=10)  # 56 documents of 24
    result = train(chosen)
    records = metrics(chosen.folder)
    assert [record["step"] for record in records if record.get("guard") == "pass_end"] == [4, 7]
    assert guard_counts(records) == result["guards"] == {"nonfinite": 0, "loss_spike": 0, "pass_end": 2}
    code, _, err = pipeline(*train_arguments(root.absolute(), "fresh", data="fresh", steps=8, global_batch_size=7))
    assert code == 2 and "data=fresh: 56 documents are needed" in err
