"""The model around the placements: taps, cache, checkpointing, files."""

import pytest
import torch
from students import HIDDEN, VOCABULARY, config_for, tiny_student, tiny_teacher, tokens
from transformers import AutoModelForCausalLM

from stage2_student.model.config import BlockStackConfig
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.model.varlen import VARLEN, positions
from stage2_student.register import register

NORMS = pytest.mark.parametrize("norm", ["pre", "post"])
FAMILIES = pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])


# --- taps, bypass, head ---


@NORMS
def test_boundaries_are_the_stream_at_every_block_boundary(norm):
    student, ids, taps = tiny_student(norm=norm), tokens(), []
    hidden = student.hidden_states(ids, boundaries=taps)
    embedded = student.embed_tokens(ids)
    assert len(taps) == 4
    assert torch.equal(taps[0], embedded if norm == "pre" else student.boundary_norm(embedded))
    assert torch.equal(hidden, student.boundary_norm(taps[-1]) if norm == "pre" else taps[-1])
    assert torch.equal(student.lm_head(hidden), student(ids).logits)


@NORMS
def test_bypass_steps_over_whole_blocks_and_keeps_the_boundary_norm(norm):
    student, shallow, ids = tiny_student(norm=norm), tiny_student(norm=norm, active_blocks=2), tokens()
    taps = []
    assert torch.equal(student.hidden_states(ids, bypass={2}, boundaries=taps), shallow.hidden_states(ids))
    assert torch.equal(taps[3], taps[2])
    alone = student.hidden_states(ids, bypass=[0, 1, 2])
    assert torch.equal(alone, student.boundary_norm(student.embed_tokens(ids)))
    assert torch.equal(student(ids, bypass=[1]).logits, student.lm_head(student.hidden_states(ids, bypass=[1])))


def test_head_loss_sees_hidden_states_and_weight_and_no_logits_are_made(monkeypatch):
    student, ids = tiny_student(), tokens()
    expected = student(ids).logits
    monkeypatch.setattr(torch.nn.functional, "linear", lambda *a, f=torch.nn.functional.linear: _no_logits(f(*a)))
    hidden, weight = student(ids, head_loss=lambda hidden, weight: (hidden, weight))
    assert weight is student.lm_head.weight and hidden.shape == (2, 11, HIDDEN)
    torch.testing.assert_close(hidden @ weight.T, expected)


def _no_logits(out):
    assert out.shape[-1] != VOCABULARY, "logits were made"
    return out


def test_labels_give_the_shifted_cross_entropy():
    student, ids = tiny_student(), tokens()
    out = student(ids, labels=ids)
    expected = torch.nn.functional.cross_entropy(out.logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    torch.testing.assert_close(out.loss, expected)


# --- attention, cache, checkpointing ---


@NORMS
def test_sdpa_gets_no_mask_and_takes_its_causal_path(norm, monkeypatch):
    calls = []
    sdpa = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append((k["attn_mask"], k["is_causal"])) or sdpa(*a, **k)
    )
    tiny_student(norm=norm)(tokens())
    assert calls == [(None, True)] * 6


@NORMS
def test_one_document_does_not_see_another(norm):
    student, ids = tiny_student(norm=norm), tokens()
    changed = ids.clone()
    changed[0] = (changed[0] + 1) % VOCABULARY
    before, after = student(ids).logits, student(changed).logits
    assert torch.equal(before[1], after[1]) and not torch.equal(before[0], after[0])


DOCUMENTS = (5, 1, 11, 5)


@NORMS
@FAMILIES
def test_packed_documents_give_what_each_gives_alone(family, norm):
    """Logits and gradients in float64; activations kept, and recomputed."""
    student = tiny_student(family, norm=norm).double().train()
    student.set_attn_implementation(VARLEN)
    alone = tokens(1, sum(DOCUMENTS)).split(DOCUMENTS, dim=1)
    logits = torch.cat([student(ids).logits for ids in alone], dim=1)
    logits.square().sum().backward()
    expected = {name: p.grad.clone() for name, p in student.named_parameters() if p.requires_grad}
    for recomputed in (False, True):
        student.zero_grad()
        if recomputed:
            student.gradient_checkpointing_enable({"use_reentrant": False})
        packed = student(torch.cat(alone, dim=1), document_lengths=DOCUMENTS).logits
        torch.testing.assert_close(packed, logits, rtol=1e-12, atol=1e-12)
        packed.square().sum().backward()
        for name, parameter in student.named_parameters():
            if parameter.requires_grad:
                torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-10, atol=1e-10)


@NORMS
def test_a_packed_document_does_not_see_another(norm):
    student, ids = tiny_student(norm=norm), tokens(1, sum(DOCUMENTS))
    student.set_attn_implementation(VARLEN)
    before = student(ids, document_lengths=DOCUMENTS).logits.split(DOCUMENTS, dim=1)
    for changed in range(len(DOCUMENTS)):
        others = [part.clone() for part in ids.split(DOCUMENTS, dim=1)]
        others[changed] = (others[changed] + 1) % VOCABULARY
        after = student(torch.cat(others, dim=1), document_lengths=DOCUMENTS).logits.split(DOCUMENTS, dim=1)
        assert [torch.equal(mine, theirs) for mine, theirs in zip(before, after)] == [place != changed for place in range(len(DOCUMENTS))]


def test_positions_start_anew_in_each_document():
    """Rotary attention knows differences only, and would hide it until positions are larger than the teacher ever saw."""
    assert positions((3, 1, 2), torch.device("cpu")).tolist() == [[0, 1, 2, 0, 0, 1]]


def test_attention_that_would_mix_documents_is_refused(tmp_path):
    """And how documents lay in training is not written into the student."""
    student = tiny_student()
    with pytest.raises(AssertionError, match="keeps documents apart"):
        student(tokens(1, 7), document_lengths=(3, 4))
    student.set_attn_implementation(VARLEN)
    student.save_pretrained(tmp_path)
    assert VARLEN not in (tmp_path / "config.json").read_text()


@NORMS
@FAMILIES
def test_greedy_generation_with_and_without_cache_agree(family, norm):
    student, ids = tiny_student(family, norm=norm, active_blocks=2), tokens(2, 7)
    settings = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    cached = student.generate(ids, use_cache=True, **settings)
    assert torch.equal(cached, student.generate(ids, use_cache=False, **settings))
    by_hand = ids
    for _ in range(12):
        by_hand = torch.cat([by_hand, student(by_hand).logits[:, -1:].argmax(-1)], dim=1)
    assert torch.equal(cached, by_hand)


@torch.no_grad()
def test_cached_logits_equal_uncached():
    student, ids = tiny_student(norm="post"), tokens()
    cache = student(ids[:, :6], use_cache=True).past_key_values
    steps = [student(ids[:, t : t + 1], past_key_values=cache).logits for t in range(6, 11)]
    torch.testing.assert_close(torch.cat(steps, dim=1), student(ids).logits[:, 6:], atol=1e-4, rtol=1e-4)
    assert student(ids).past_key_values is None


@NORMS
def test_gradient_checkpointing_gives_equal_gradients(norm):
    student, ids = tiny_student(norm=norm).train(), tokens()
    grads = []
    for checkpointing in (False, True):
        if checkpointing:
            student.gradient_checkpointing_enable()
        student.zero_grad()
        student(ids, labels=ids).loss.backward()
        grads.append({name: p.grad.clone() for name, p in student.named_parameters() if p.requires_grad})
    assert all(torch.equal(grads[0][name], grads[1][name]) for name in grads[0])


def test_a_frozen_prefix_is_not_recomputed_under_checkpointing():
    student = tiny_student().train()
    student.gradient_checkpointing_enable()
    student.blocks[:2].requires_grad_(False)
    taps = []
    student.hidden_states(tokens(), boundaries=taps)
    assert [tap.requires_grad for tap in taps] == [False, False, False, True]


@NORMS
def test_casting_to_bfloat16_leaves_the_rotary_frequencies_alone(norm):
    student = tiny_student(norm=norm)
    x, positions = torch.zeros(1, 1, dtype=torch.bfloat16), torch.tensor([[8191]])
    before = student.rotary_emb(x, positions)
    assert all(torch.equal(a, b) for a, b in zip(before, student.to(torch.bfloat16).rotary_emb(x, positions), strict=True))
    assert not list(student.buffers())


# --- files ---


@NORMS
def test_save_and_load_round_trip(tmp_path, norm):
    register()
    register()
    student, ids = tiny_student(norm=norm, active_blocks=2), tokens()
    student.config.structure = [{"type": "append", "block": 1, "start": "random"}]
    student.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").exists()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is BlockStackForCausalLM and len(loaded.blocks) == 2
    assert loaded.config.structure == student.config.structure and loaded.config.num_hidden_layers == 4
    assert torch.equal(loaded(ids).logits, student(ids).logits)
    saved = student.state_dict()
    assert all(torch.equal(saved[name], tensor) for name, tensor in loaded.state_dict().items())
    assert {n for n, p in loaded.named_parameters() if not p.requires_grad} == {"embed_tokens.weight"}


@FAMILIES
def test_config_carries_its_familys_fields(family):
    teacher = tiny_teacher(family, rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    config = config_for(teacher)
    assert config.rms_norm_eps == 1e-5 and config.rope_parameters["rope_theta"] == 5e5 and config.intermediate_size == 48
    again = BlockStackConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert config.tie_word_embeddings is False and config.layer_types == ["full_attention"] * 6
