"""How a student starts: its sizes, its teacher's tensors, its random blocks, and which teachers are refused."""

import itertools

import pytest
import torch
from students import HIDDEN, VOCABULARY, config_for, interface, tiny_student, tiny_teacher
from transformers import LlamaConfig, Qwen2Config, Qwen3Config

from pipeline.contract.errors import RunError, TeacherError
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.initialization import block_generator, build_student
from stage2_student.model.parameters import count_parameters

NORMS = pytest.mark.parametrize("norm", ["pre", "post"])
FAMILIES = pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])

QWEN3_8B = Qwen3Config(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_hidden_layers=36,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
)


def student_shape(teacher, norm, **changes):
    shape = {"blocks": 3, "layers_per_block": 3, "norm": norm, "active_blocks": 3, "initializer_range": 0.02, "seed": 42}
    return BlockStackConfig.from_teacher(teacher, **shape | changes)


# --- sizes ---


def test_the_papers_student_counts_2_98_billion():
    counts = count_parameters(student_shape(QWEN3_8B, "pre"))
    print(f"\n9 layers of Qwen3-8B's shape: counted {counts['total'] / 1e9:.2f}B, the paper states 3.09B")
    assert f"{counts['total'] / 1e9:.2f}" == "2.98"
    assert counts["decoder"] == 9 * 192_946_432 and len(counts["per_block"]) == 3
    assert counts["embedding"] == counts["head"] == 151936 * 4096
    assert counts["total"] == counts["embedding"] + counts["head"] + counts["boundary_norm"] + counts["decoder"]
    assert counts["trainable"] == counts["total"] - counts["embedding"]


def test_both_placements_count_the_same():
    assert count_parameters(student_shape(QWEN3_8B, "pre")) == count_parameters(student_shape(QWEN3_8B, "post"))


# --- initialisation ---


@NORMS
@FAMILIES
def test_interface_is_the_teachers_and_the_head_is_its_own(family, norm):
    teacher = tiny_teacher(family, tie_word_embeddings=True)
    student = build_student(config_for(teacher, norm=norm), interface(teacher))
    assert torch.equal(student.embed_tokens.weight, teacher.model.embed_tokens.weight)
    assert torch.equal(student.lm_head.weight, student.embed_tokens.weight)
    assert student.lm_head.weight.data_ptr() != student.embed_tokens.weight.data_ptr()
    assert torch.equal(student.boundary_norm.weight, teacher.model.norm.weight)
    assert [name for name, p in student.named_parameters() if not p.requires_grad] == ["embed_tokens.weight"]
    assert all(p.dtype == torch.float32 for p in student.parameters())


def test_placements_start_from_the_same_tensors():
    pre, post = tiny_student(norm="pre").state_dict(), tiny_student(norm="post").state_dict()
    assert pre.keys() == post.keys() and all(torch.equal(pre[name], post[name]) for name in pre)


def test_blocks_and_seeds_draw_their_own_weights():
    draws = [torch.randn(50, generator=block_generator(seed, index)) for seed, index in itertools.product((0, 1, 42), (0, 1, 2))]
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(draws, 2))
    blocks = tiny_student().blocks
    assert not torch.equal(blocks[0].layers[0].mlp.up_proj.weight, blocks[1].layers[0].mlp.up_proj.weight)
    assert not torch.equal(blocks[0].layers[0].mlp.up_proj.weight, tiny_student(seed=43).blocks[0].layers[0].mlp.up_proj.weight)


@FAMILIES
def test_linear_weights_have_the_std_gains_are_one_and_biases_zero(family):
    for name, parameter in tiny_student(family, initializer_range=0.02).blocks.named_parameters():
        if "norm" in name:
            assert torch.equal(parameter, torch.ones_like(parameter)), name
        elif name.endswith("bias"):
            assert not parameter.any(), name
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15), name


def test_the_global_random_state_plays_no_part():
    torch.manual_seed(1)
    first = tiny_student().blocks.state_dict()
    teacher = tiny_teacher()
    before = torch.get_rng_state()
    second = build_student(config_for(teacher), interface(teacher))
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(first[name], tensor) for name, tensor in second.blocks.state_dict().items())


# --- errors ---


def test_an_unknown_family_is_refused():
    teacher = LlamaConfig(vocab_size=VOCABULARY, hidden_size=HIDDEN)
    teacher.model_type = "gpt2"
    with pytest.raises(TeacherError, match=r"'gpt2'.*llama, qwen2, qwen3.*choose"):
        student_shape(teacher, "pre")


def test_sliding_windows_are_refused():
    teacher = Qwen2Config(num_hidden_layers=4, max_window_layers=2, use_sliding_window=True)
    with pytest.raises(TeacherError, match="sliding_attention"):
        student_shape(teacher, "pre")


def test_rotary_scaling_by_length_is_refused():
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    teacher = tiny_teacher("llama", rope_parameters=rope)
    with pytest.raises(TeacherError, match="rope_type='dynamic'"):
        build_student(config_for(teacher), interface(teacher))


@pytest.mark.parametrize(("changes", "message"), [({"norm": "sandwich"}, "norm='sandwich'"), ({"active_blocks": 4}, "active_blocks=4")])
def test_an_impossible_config_is_refused(changes, message):
    with pytest.raises(RunError, match=message):
        config_for(tiny_teacher(), **changes)


def test_a_misshapen_or_missing_tensor_is_named():
    teacher = tiny_teacher()
    tensors = interface(teacher)
    with pytest.raises(TeacherError, match=r"lm_head.weight is \[5, 32\], its config says \[61, 32\]"):
        build_student(config_for(teacher), tensors | {"lm_head.weight": torch.zeros(5, HIDDEN)})
    with pytest.raises(TeacherError, match=r"without norm\.weight"):
        build_student(config_for(teacher), {"embed_tokens.weight": tensors["embed_tokens.weight"]})
