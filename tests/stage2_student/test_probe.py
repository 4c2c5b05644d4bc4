"""What a run writes down for its diagnostics: probes, gradient norms by block, snapshots; and that none of it moves a bit."""

from typing import Any

import pytest
from runs import equal_states, job, metrics, phase_state
from safetensors.torch import load_file
from test_restart import Crash, crash_at, values

from stage2_student.model.parameters import part_of
from stage2_student.probe import is_probed
from stage2_student.train import train

WATCHED: dict[str, Any] = {"curriculum": "grow", "norm": "post", "steps": 9, "eval_interval": 5, "checkpoint_interval": 4}
WATCHED |= {"probe_documents": 2, "gradient_norms_interval": 3, "snapshot_interval": 4}
BLIND: dict[str, Any] = WATCHED | {"probe_documents": 0, "gradient_norms_interval": 0, "snapshot_interval": 0}


@pytest.fixture(scope="module")
def watched(module_root):
    chosen = job(module_root, **WATCHED, name="watched")
    train(chosen)
    return chosen


def test_a_probe_is_at_0_4_8_16_and_at_the_end(module_root):
    settings = job(module_root).settings
    assert [step for step in range(101) if is_probed(step, 100, settings)] == [0, 4, 8, 16, 32, 64, 100]
    assert not any(is_probed(step, 100, job(module_root, probe_documents=0).settings) for step in range(101))


def test_probes_are_recorded_with_the_end_of_each_phase_as_the_next_ones_step_minus_1(watched):
    probes = metrics(watched.folder, "probe")
    assert [(m["phase"], m["phase_step"], m["step"]) for m in probes] == [(p, s, 9 * p + s) for p in range(3) for s in (0, 4, 8, 9)]
    tokens = {m["probe/tokens"] for m in probes}
    assert len(tokens) == 1 and tokens.pop() < metrics(watched.folder, "val")[0]["val/tokens"]


def test_a_probe_of_every_document_is_the_evaluation(module_root):
    chosen = job(module_root, steps=5, eval_interval=4, probe_documents=100, name="all")
    train(chosen)
    probes, evaluations = ({m["phase_step"]: m for m in metrics(chosen.folder, kind)} for kind in ("probe", "val"))
    for step in (0, 4, 5):
        assert all(probes[step][f"probe/{name}"] == evaluations[step][f"val/{name}"] for name in ("ce", "kl", "kd", "tokens"))


def test_watching_changes_no_bit(watched, module_root):
    blind = job(module_root, **BLIND, name="blind")
    train(blind)
    assert not metrics(blind.folder, "probe") and not blind.record.snapshots.exists()
    mine, theirs = (metrics(chosen.folder, "train") for chosen in (watched, blind))
    assert not any(key.startswith("optim/grad_norm/") for m in theirs for key in m)
    shared = [
        [{key: m[key] for key in b if not key.startswith("perf/")} for m, b in zip(each, theirs, strict=True)] for each in (mine, theirs)
    ]
    assert shared[0] == shared[1]
    assert all(equal_states(phase_state(watched.folder, p), phase_state(blind.folder, p)) for p in range(3))


def test_a_resumed_run_probes_where_an_uninterrupted_one_does(watched, module_root):
    broken = job(module_root, **WATCHED, name="broken")
    for place in ((0, 6), (1, 5), (2, 9)):
        with pytest.raises(Crash):
            train(broken, crash_at(*place))
    train(broken)
    assert values(broken) == values(watched)
    assert sorted(path.name for path in broken.record.snapshots.iterdir()) == sorted(
        path.name for path in watched.record.snapshots.iterdir()
    )


def test_snapshots_are_students_between_the_phases_ends(watched):
    """Every 4 steps of each phase's 9."""
    names = sorted(path.name for path in watched.record.snapshots.iterdir())
    assert names == [f"step-{step:08d}" for step in (4, 8, 13, 17, 22, 26)]
    states = [load_file(watched.record.snapshots / name / "model.safetensors") for name in names]
    assert [sum("mlp_norm" in name for name in state) for state in states] == [1, 1, 2, 2, 3, 3]
    assert not equal_states(states[4], states[5]) and states[4].keys() == phase_state(watched.folder, 2).keys()


# --- gradient norms ---

ENGINES = [(0, "float32"), (1, "float32"), (2, "float32"), (2, "bfloat16")]


@pytest.mark.parametrize(("zero", "precision"), ENGINES)
def test_the_parts_of_a_gradient_make_up_its_norm(module_root, zero, precision):
    """And a frozen part has none."""
    options = {"curriculum": "freeze", "steps": 2, "gradient_norms_interval": 1, "zero": zero, "precision": precision}
    chosen = job(module_root, **options, name=f"norms-{zero}-{precision}")
    train(chosen)
    expected = [{"block_0", "head", "boundary_norm"}, {"block_1"}, {"block_2"}]
    for record in metrics(chosen.folder, "train"):
        parts = {key.rpartition("/")[2]: norm for key, norm in record.items() if key.startswith("optim/grad_norm/")}
        assert parts.keys() == expected[record["phase"]] and all(norm > 0 for norm in parts.values())
        assert sum(norm**2 for norm in parts.values()) ** 0.5 == pytest.approx(record["optim/grad_norm"], rel=1e-5)


def test_norms_are_recorded_at_the_interval_from_the_first_step_on(watched):
    recorded = [(m["phase"], m["phase_step"]) for m in metrics(watched.folder, "train") if "optim/grad_norm/head" in m]
    assert recorded == [(phase, step) for phase in range(3) for step in (1, 4, 7)]


def test_parts():
    names = ["blocks.11.layers.0.mlp.up_proj.weight", "embed_tokens.weight", "lm_head.weight", "boundary_norm.weight"]
    assert [part_of(name) for name in names] == ["block_11", "embedding", "head", "boundary_norm"]
