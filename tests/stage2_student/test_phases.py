"""Growing and freezing: what each phase starts from, what moves, what stands still, under every ZeRO stage (field cases 40, 41)."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from runs import job, metrics, phase_state
from safetensors.torch import load_file
from watched import Start, State, train_watched

from pipeline.contract.schedule import learning_rate
from stage2_student.job import StudentJob
from stage2_student.model.config import BlockStackConfig
from stage2_student.phase_models import first_model

CURRICULA: dict[str, dict[str, Any]] = {
    "grow": {"curriculum": "grow", "norm": "post"},
    "freeze": {"curriculum": "freeze", "norm": "pre"},
    "keep": {"curriculum": "freeze", "norm": "post", "freeze": {"keep": ["head", "boundary_norm"]}},
    "zero out": {"curriculum": "grow", "norm": "pre", "model": {"new_block": "zero_out"}},
}
ENGINES = [(0, "float32"), (1, "float32"), (2, "bfloat16")]
RUNS = [(name, *engine) for name in ("grow", "freeze", "keep") for engine in ENGINES]
RUNS += [("zero out", 1, "float32"), ("grow", 3, "float32"), ("keep", 3, "bfloat16")]  # every line of the support table: test_support.py


class Finished(NamedTuple):
    """A run, what it returned, and for each phase its engine's start and the weights it left."""

    name: str
    job: StudentJob
    result: dict[str, Any]
    starts: list[Start]
    ends: list[State]


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: "-".join(map(str, run)))
def run(request, module_root) -> Finished:
    name, zero, precision = request.param
    chosen = job(module_root, **CURRICULA[name], zero=zero, precision=precision, name=f"{name}-{zero}-{precision}".replace(" ", "-"))
    with pytest.MonkeyPatch.context() as patch:
        result, starts = train_watched(chosen, patch)
    return Finished(name, chosen, result, starts, [phase_state(chosen.folder, phase) for phase in range(3)])


def blocks(state: State) -> set[int]:
    return {int(name.split(".")[1]) for name in state if name.startswith("blocks.")}


def test_phases_have_one_two_and_three_blocks(run):
    assert [blocks(start.weights) for start in run.starts] == [{0}, {0, 1}, {0, 1, 2}]
    assert [blocks(end) for end in run.ends] == [{0}, {0, 1}, {0, 1, 2}]
    structure = [BlockStackConfig.from_pretrained(run.job.record.phase(phase)).structure for phase in range(3)]
    assert [[event["block"] for event in events] for events in structure] == [[], [1], [1, 2]]


def test_each_phase_has_a_fresh_optimizer_and_a_fresh_schedule(run):
    expected = [learning_rate(step, run.job.settings) for step in range(4)]
    assert expected[0] == 3e-3
    for phase, start in enumerate(run.starts):
        assert start.fresh == [True, False, False, False]
        assert start.rates == expected
        records = [record for record in metrics(run.job.folder, "train") if record["phase"] == phase]
        assert [record["optim/lr"] for record in records] == expected
        assert [record["phase_step"] for record in records] == [1, 2, 3, 4]


def test_carried_weights_are_bit_equal_to_the_phase_before(run):
    """Also under bfloat16: what is carried are the float32 masters."""
    for phase in (1, 2):
        before, after = run.ends[phase - 1], run.starts[phase].weights
        assert before.keys() < after.keys()
        assert all(torch.equal(before[name], after[name]) for name in before)


def test_new_blocks_are_the_joint_runs(run):
    joint = first_model(run.job, 3).state_dict()
    for phase, start in enumerate(run.starts):
        new = [name for name in start.weights if name.startswith(f"blocks.{phase}.")]
        assert len(new) == 11
        for name in new:
            zeroed = run.name == "zero out" and phase > 0 and ("o_proj" in name or "down_proj" in name)
            assert torch.equal(start.weights[name], torch.zeros_like(joint[name]) if zeroed else joint[name]), name


def expected_to_train(run: Finished, phase: int, name: str) -> bool:
    if name == "embed_tokens.weight":
        return False
    if run.job.settings.curriculum == "grow" or phase == 0 or name.startswith(f"blocks.{phase}."):
        return True
    return run.name == "keep" and name in ("lm_head.weight", "boundary_norm.weight")


def test_what_trains_moves_and_what_is_frozen_is_bit_equal(run):
    for phase, (start, end) in enumerate(zip(run.starts, run.ends, strict=True)):
        assert start.weights.keys() == end.keys()
        wanted = {name for name in end if expected_to_train(run, phase, name)}
        assert start.trained == wanted
        moved = {name for name in end if not torch.equal(start.weights[name], end[name])}
        assert moved == wanted, moved ^ wanted


def test_the_embedding_is_the_teachers_and_the_head_is_not(run):
    teacher = load_file(run.job.cache.path / "teacher/interface.safetensors")
    assert torch.equal(run.starts[0].weights["lm_head.weight"], teacher["lm_head.weight"])
    for end in run.ends:
        assert torch.equal(end["embed_tokens.weight"], teacher["embed_tokens.weight"])
        assert not torch.equal(end["lm_head.weight"], teacher["lm_head.weight"])
        assert all(tensor.dtype == torch.float32 for tensor in end.values())


def test_j0_is_recorded_for_each_append(run):
    values = {(record["phase"], record["phase_step"]): record["val/ce"] for record in metrics(run.job.folder, "val")}
    events = metrics(run.job.folder, "event")
    assert [(event["event"], event["block"], event["phase_step"]) for event in events] == [("append", 1, 0), ("append", 2, 0)]
    for phase, event in zip((1, 2), events, strict=True):
        assert event["j0"] == values[phase, 0] - values[phase - 1, 4]
        assert BlockStackConfig.from_pretrained(run.job.record.phase(phase)).structure[-1]["j0"] == event["j0"]
        assert (abs(event["j0"]) < 1e-6) == (run.name == "zero out")  # an identity costs nothing; random blocks do


def test_evaluations_are_at_the_start_at_the_interval_and_at_the_end(run):
    places = [(record["phase"], record["phase_step"], record["step"]) for record in metrics(run.job.folder, "val")]
    assert places == [(phase, step, 4 * phase + step) for phase in range(3) for step in (0, 3, 4)]


def test_the_result_holds_endpoint_values(run):
    last = metrics(run.job.folder, "val")[-1]
    assert run.result["val_ce"] == last["val/ce"] and run.result["val_kl"] == last["val/kl"]
    written = json.loads((run.job.folder / "result.json").read_text())
    assert written == run.result and written["steps_executed"] == 12 and written["resumed_from"] == 0


def test_a_phase_folder_loads_by_itself(run: Finished):
    from stage2_student.model.student import BlockStackForCausalLM

    loaded = BlockStackForCausalLM.from_pretrained(Path(run.job.record.phase(1)))
    assert all(torch.equal(run.ends[1][name], tensor) for name, tensor in loaded.state_dict().items())
