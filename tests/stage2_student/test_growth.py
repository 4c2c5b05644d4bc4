"""Growing depth: a pure function of weights, config and event, paired with joint training."""

import copy

import pytest
import torch
from students import config_for, interface, shake, tiny_student, tiny_teacher, tokens, with_weights

from pipeline.contract.errors import RunError
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.growth import apply_event, replay
from stage2_student.model.initialization import build_student

NORMS = pytest.mark.parametrize("norm", ["pre", "post"])
STARTS = pytest.mark.parametrize("start", ["random", "zero_out"])


def append(block, start="random"):
    return {"type": "append", "block": block, "start": start}


def trained(family="qwen3", *, norm, active_blocks=1):
    """A student as training leaves it: nothing at its initial value, every gain other than one."""
    student = tiny_student(family, norm=norm, active_blocks=active_blocks)
    shake(student)
    return student


@NORMS
def test_a_grown_block_starts_as_in_joint(norm):
    teacher = tiny_teacher()
    joint = build_student(config_for(teacher, norm=norm), interface(teacher)).state_dict()
    first = build_student(config_for(teacher, norm=norm, active_blocks=1), interface(teacher))
    state, config = first.state_dict(), first.config
    for block in (1, 2):
        state, config = apply_event(state, config, append(block))
    assert state.keys() == joint.keys() and all(torch.equal(state[name], joint[name]) for name in joint)
    assert all(tensor.dtype == torch.float32 for tensor in state.values())


@NORMS
@STARTS
def test_growth_is_pure(norm, start):
    student = trained(norm=norm)
    state, config, event = student.state_dict(), student.config, append(1, start)
    copies = {name: tensor.clone() for name, tensor in state.items()}, config.to_dict(), copy.deepcopy(event)
    grown, changed = apply_event(state, config, event)
    assert state.keys() == copies[0].keys() and all(torch.equal(state[name], tensor) for name, tensor in copies[0].items())
    assert (config.to_dict(), event) == copies[1:]
    moved = {"blocks.0.layers.1.mlp_norm.weight"} if (norm, start) == ("post", "zero_out") else set()
    assert {name for name in state if grown[name] is not state[name]} == moved
    assert (changed.active_blocks, changed.num_hidden_layers, changed.structure) == (2, 4, [event])
    again, _ = apply_event(state, config, event)
    assert all(torch.equal(grown[name], again[name]) for name in grown)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_zero_out_is_an_exact_identity_in_pre_norm(family):
    student, ids = trained(family, norm="pre"), tokens()
    grown = with_weights(*reversed(apply_event(student.state_dict(), student.config, append(1, "zero_out"))))
    assert torch.equal(grown(ids).logits, student(ids).logits)
    assert torch.equal(grown(ids, bypass=[1]).logits, grown(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_zero_out_is_the_identity_up_to_eps_in_post_norm(family):
    """Each of the 2L new norms scales a vector of mean square 1 - O(eps) by 1 + O(eps): at most 2L eps in all."""
    student, ids = trained(family, norm="post").double(), tokens()
    state, config = apply_event(student.state_dict(), student.config, append(1, "zero_out"))
    before, after = student.hidden_states(ids), with_weights(config, state).hidden_states(ids)
    assert ((after - before).abs() / before.abs()).max() <= 2 * config.layers_per_block * config.rms_norm_eps
    unmoved = with_weights(config, state | student.state_dict())  # the gain back in its old place, and also in the new one
    assert (unmoved.hidden_states(ids) - before).abs().max() > 0.01


@torch.no_grad()
def test_a_random_start_is_no_identity():
    student, ids = trained(norm="pre"), tokens()
    grown = with_weights(*reversed(apply_event(student.state_dict(), student.config, append(1))))
    assert not torch.allclose(grown(ids).logits, student(ids).logits)


def test_zero_out_draws_what_random_draws():
    student = trained(norm="pre")
    random, _ = apply_event(student.state_dict(), student.config, append(1))
    zeroed, _ = apply_event(student.state_dict(), student.config, append(1, "zero_out"))
    different = {name.split(".")[-2] for name in random if not torch.equal(random[name], zeroed[name])}
    assert different == {"o_proj", "down_proj"}


@torch.no_grad()
@NORMS
def test_bypassing_an_appended_block_gives_the_student_before(norm):
    student, ids = trained(norm=norm), tokens()
    grown = with_weights(*reversed(apply_event(student.state_dict(), student.config, append(1))))
    assert torch.equal(grown(ids, bypass=[1]).logits, student(ids).logits)


@NORMS
def test_replay_rebuilds_the_config_from_what_was_stored(norm):
    base = config_for(tiny_teacher(), norm=norm, active_blocks=1)
    events = [append(1) | {"ce_before": 2.5, "ce_after": 2.75}, append(2, "zero_out")]
    config = replay(base, events)
    assert (config.active_blocks, config.structure, base.structure) == (3, events, [])
    stored = BlockStackConfig.from_dict(config.to_dict())
    assert replay(base, stored.structure).to_dict() == stored.to_dict()
    assert replay(base, []) is base


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "prune"}, "type='prune'.*append"),
        ({}, "type=None"),
        (append(2), "block=2: the next block is 1"),
        (append(0), "block=0: the next block is 1"),
        (append(1, "warm"), "start='warm'"),
    ],
)
def test_an_event_that_does_not_fit_is_refused(event, message):
    student = tiny_student(active_blocks=1)
    with pytest.raises(RunError, match=message):
        apply_event(student.state_dict(), student.config, event)


def test_a_full_stack_does_not_grow():
    student = tiny_student()
    with pytest.raises(RunError, match="blocks=3"):
        apply_event(student.state_dict(), student.config, append(3))
