"""How a student starts: the teacher's embedding, head and final norm, and random blocks.

A block's weights depend on (seed, block index) alone, so joint, grow and freeze, pre-norm and post-norm are paired runs.
"""

import hashlib
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from pipeline.contract.errors import RunError, TeacherError
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.layers import Block
from stage2_student.model.norms import RMSNorm
from stage2_student.model.student import BlockStackForCausalLM

Start = Literal["random", "zero_out"]


def block_generator(seed: int, index: int) -> torch.Generator:
    """The CPU generator of block `index`: its seed is a hash, so that neighbouring seeds and blocks share no stream."""
    digest = hashlib.sha256(f"block_stack/{seed}/{index}".encode()).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest[:4], "little"))  # mt19937 reads 32 bits


@torch.no_grad()
def initialize_block(block: nn.Module, *, seed: int, index: int, std: float, start: Start = "random") -> None:
    """Draw every linear weight from N(0, std^2) (paper: the family's scheme, std 0.02); biases zero, norm gains one.

    `zero_out` then sets `o_proj` and `down_proj` to zero: the block writes nothing to the residual stream. The draws
    are the same, so the other weights equal those of a random start.

    Raises:
        RunError: an unknown `start`.
    """
    if start not in get_args(Start):
        raise RunError(f"start={start!r}: a new block starts {' or '.join(get_args(Start))}; correct the event")
    generator = block_generator(seed, index)
    for name, module in block.named_modules():
        if isinstance(module, nn.Linear):
            # float32 on the CPU whatever the block's dtype and device: the same numbers everywhere
            module.weight.copy_(torch.empty(module.weight.shape, device="cpu").normal_(std=std, generator=generator))
            if start == "zero_out" and name.endswith(("o_proj", "down_proj")):
                module.weight.zero_()
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, RMSNorm):
            module.weight.fill_(1.0)


def fresh_block(config: BlockStackConfig, index: int, start: Start = "random") -> Block:
    """A new float32 block `index` on the CPU, initialised by `config.seed` and `config.initializer_range`."""
    with torch.device("meta"):  # torch's own initialisation would cost more than ours
        block = Block(config, index)
    block.to_empty(device="cpu")
    initialize_block(block, seed=config.seed, index=index, std=config.initializer_range, start=start)
    return block


@torch.no_grad()
def load_teacher_interface(model: BlockStackForCausalLM, tensors: dict[str, Tensor]) -> None:
    """Copy what the paper takes from the teacher: embedding (frozen), head (trained), final norm (the boundary norm).

    `tensors` holds "embed_tokens.weight" [V, D], "norm.weight" [D] and, unless the teacher ties them, "lm_head.weight"
    [V, D]; a tied teacher's head is a copy of the embedding.

    Raises:
        TeacherError: a tensor is missing or of another shape than the student's.
    """
    missing = {"embed_tokens.weight", "norm.weight"} - tensors.keys()
    if missing:
        raise TeacherError(f"teacher interface without {', '.join(sorted(missing))}: a student starts from it; capture the teacher again")
    head = tensors.get("lm_head.weight", tensors["embed_tokens.weight"])
    _copy("embed_tokens.weight", model.embed_tokens.weight, tensors["embed_tokens.weight"])
    _copy("lm_head.weight", model.lm_head.weight, head)
    _copy("norm.weight", model.boundary_norm.weight, tensors["norm.weight"])
    model.freeze_embedding()


def _copy(name: str, target: Tensor, source: Tensor) -> None:
    if target.shape != source.shape:
        wanted, found = list(target.shape), list(source.shape)
        raise TeacherError(f"teacher {name} is {found}, its config says {wanted}: use tensors and config of one teacher")
    target.copy_(source)


def build_student(config: BlockStackConfig, interface: dict[str, Tensor]) -> BlockStackForCausalLM:
    """A float32 student on the CPU with `config.active_blocks` random blocks and the teacher's `interface`.

    Raises:
        TeacherError: see `load_teacher_interface`.
    """
    with torch.device("meta"):
        model = BlockStackForCausalLM(config)
    model.to_empty(device="cpu")
    load_teacher_interface(model, interface)
    for index, block in enumerate(model.blocks):
        initialize_block(block, seed=config.seed, index=index, std=config.initializer_range)
    return model
