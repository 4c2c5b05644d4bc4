"""What only a GPU can show, in some minutes on one: `PYTHONPATH=.:tests/benchmarks python tests/gpu/check.py`.

    kernels   the tests of the loss and of its row kernels, there on CUDA: eager, compiled, Triton
    loss      seconds of the fused loss over those of its three products, of CE alone, of Liger's fused CE where that is installed;
              memory over the inputs' at three numbers of tokens
    step      an update of a 9-layer student of Qwen3-8B's shape, random weights, pre-norm and post-norm, whole and with blocks frozen:
              seconds, tokens/s, MFU, memory; documents packed as in training, over the same in a rectangle, which they fill

Medians (least, largest) over rounds, interleaved, the device waited for. A part that fails ends the whole with its error.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from loss_ratio import Inputs, floor, fused, inputs, nothing_kept
from transformers import Qwen3Config

from pipeline.contract.manifest.student import StudentManifest
from stage2_student.curriculum import is_trained, phases
from stage2_student.engine import Processes, StudentEngine
from stage2_student.flops import document_flops
from stage2_student.loss import IGNORE_INDEX, SparseTargets, fused_distillation_loss
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.initialization import initialize_block
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.model.varlen import VARLEN
from stage2_student.peaks import peak_flops

CHECKOUT = Path(__file__).parents[2]
TESTS = ["tests/stage2_student/test_row_kernels.py", "tests/stage2_student/test_loss.py"]


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of the clock, until the device has done it."""
    _wait(device)
    started = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def show(name: str, values: list[float], unit: str = "") -> None:
    print(f"{name:48s} {statistics.median(values):10.4g}{unit}  ({min(values):.4g}, {max(values):.4g})", flush=True)


def kernels(a: argparse.Namespace) -> None:
    subprocess.run([sys.executable, "-m", "pytest", "-q", *TESTS], cwd=CHECKOUT, check=True)


# --- the loss ---


def loss(a: argparse.Namespace) -> None:
    for width in a.widths:
        case = _on(inputs(a.tokens, width, a.vocabulary, a.k, torch.bfloat16), a.device)
        works = _losses(case, a)
        taken = [{name: seconds(work, a.device) for name, work in works.items()} for _ in range(a.rounds + 2)][2:]
        print(f"loss: T={a.tokens} D={width} V={a.vocabulary} k={a.k} bfloat16, {a.rounds} rounds")
        show("three products", [1e3 * row["floor"] for row in taken], " ms")
        for name in list(works)[1:]:
            show(f"{name} / three products", [row[name] / row["floor"] for row in taken])
        for name in [name for name in works if name not in ("floor", "CE alone")]:
            show(f"{name} / CE alone", [row[name] / row["CE alone"] for row in taken])
        for tokens in (a.tokens // 2, a.tokens, 2 * a.tokens):
            _show_memory(_on(inputs(tokens, width, a.vocabulary, a.k, torch.bfloat16), a.device), a.device)


def _losses(case: Inputs, a: argparse.Namespace) -> dict[str, Callable[[], None]]:
    works = {"floor": partial(floor, case)}
    for name in a.kernels:
        works |= {f"{tail}, {name}": partial(fused, case, tail=tail, kernels=name) for tail in ("bucket", "sampled")}
    works["CE alone"] = partial(fused, nothing_kept(case), kernels=a.kernels[0])
    if find_spec("liger_kernel"):
        works["Liger's CE"] = partial(_liger, case)
    return works


def _liger(case: Inputs) -> None:
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    hidden, head, labels, _ = case
    torch.autograd.grad(LigerFusedLinearCrossEntropyLoss()(head, hidden, labels), (hidden, head))


def _on(case: Inputs, device: torch.device) -> Inputs:
    hidden, head, labels, targets = case
    moved = [part.detach().to(device).requires_grad_() for part in (hidden, head)]
    on_device = [part.to(device) if isinstance(part, torch.Tensor) else part for part in targets]
    return moved[0], moved[1], labels.to(device), SparseTargets(*on_device)


def _show_memory(case: Inputs, device: torch.device) -> None:
    if device.type != "cuda":
        return
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    fused(case)
    print(f"extra memory at T={len(case[0]):<12d} {(torch.cuda.max_memory_allocated(device) - before) / 1e9:.2f} GB", flush=True)


# --- an update ---


def step(a: argparse.Namespace) -> None:
    for norm in ("pre", "post"):
        for curriculum in ("joint", "freeze"):
            _update(a, norm, curriculum)


def _update(a: argparse.Namespace, norm: str, curriculum: str) -> None:
    """The last phase of a curriculum: all blocks, of which `freeze` trains one."""
    settings = StudentManifest.model_validate({"norm": norm, "curriculum": curriculum, "loss_kernels": a.kernels[0]})
    phase = phases(settings)[-1]
    config = _config(a, settings)
    model = _model(config, a.device)
    model.set_attn_implementation(VARLEN)
    if settings.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trained = partial(is_trained, phase=phase, settings=settings)
    engine = StudentEngine(model, settings, Processes(), trained)
    batch = _batch(a, config)
    ways = [partial(_accumulate_and_step, engine, settings, batch, packed) for packed in (True, False)]
    taken = [[seconds(work, a.device) for work in ways] for _ in range(a.rounds + 2)][2:]
    _report(a, f"{norm}-{curriculum}", [packed for packed, _ in taken], document_flops(config, trained), engine.dtype)
    show("packed / rectangle", [packed / rectangle for packed, rectangle in taken])
    engine.close()


def _model(config: BlockStackConfig, device: torch.device) -> BlockStackForCausalLM:
    with torch.device(device):
        model = BlockStackForCausalLM(config)
    for index, block in enumerate(model.blocks):
        initialize_block(block, seed=config.seed, index=index, std=config.initializer_range)
    return model


def _config(a: argparse.Namespace, settings: StudentManifest) -> BlockStackConfig:
    teacher = Qwen3Config(
        vocab_size=a.vocabulary,
        hidden_size=a.hidden,
        intermediate_size=3 * a.hidden,
        num_attention_heads=a.hidden // 128,
        num_key_value_heads=max(1, a.hidden // 512),
        head_dim=128,
        rms_norm_eps=1e-6,
        max_position_embeddings=40_960,
    )
    shape = settings.model
    return BlockStackConfig.from_teacher(
        teacher,
        blocks=shape.blocks,
        layers_per_block=shape.layers_per_block,
        norm=settings.norm,
        active_blocks=shape.blocks,
        initializer_range=shape.initializer_range,
        seed=settings.seed,
    )


Batch = tuple[torch.Tensor, torch.Tensor, SparseTargets]


def _batch(a: argparse.Namespace, config: BlockStackConfig) -> Batch:
    """Token ids [B, T], labels [B * T], targets of a random teacher."""
    shape = (a.documents, a.length)
    ids = torch.randint(0, config.vocab_size, shape, device=a.device)
    labels = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=IGNORE_INDEX).flatten()
    stripe = config.vocab_size // a.k  # an id from each of k stripes: none twice in a row
    kept = torch.randint(0, stripe, (ids.numel(), a.k), device=a.device) + stripe * torch.arange(a.k, device=a.device)
    weights = torch.softmax(torch.randn(ids.numel(), a.k, device=a.device) * 3, -1) * 0.95
    return ids, labels, SparseTargets(kept, weights, torch.ones_like(kept, dtype=torch.bool), 1 - weights.sum(-1))


def _accumulate_and_step(engine: StudentEngine, settings: StudentManifest, batch: Batch, packed: bool) -> None:
    ids, labels, targets = batch
    tokens = int((labels != IGNORE_INDEX).sum())
    result = engine.engine(
        ids.reshape(1, -1) if packed else ids,
        document_lengths=(ids.shape[1],) * len(ids) if packed else None,
        head_loss=lambda hidden, weight: fused_distillation_loss(
            hidden.flatten(0, 1), weight, labels, targets, tokens=tokens, kernels=settings.loss_kernels
        ),
    )
    engine.backward(result.loss, last=True)
    norm = engine.step(1e-5)
    if not 0 < norm < float("inf"):
        raise RuntimeError(f"gradient norm {norm}")


def _report(a: argparse.Namespace, name: str, taken: list[float], flops: Callable[[int], float], dtype: torch.dtype) -> None:
    tokens = a.documents * a.length
    print(f"step: {name}, {a.documents} documents of {a.length} tokens, hidden {a.hidden}, V={a.vocabulary}, {dtype}")
    show("seconds", taken)
    show("tokens/s", [tokens / each for each in taken])
    peak = peak_flops(torch.cuda.get_device_name(a.device), dtype) if a.device.type == "cuda" else None
    if peak:
        show("MFU", [a.documents * flops(a.length) / each / peak for each in taken])
    if a.device.type == "cuda":
        print(f"memory {torch.cuda.max_memory_allocated(a.device) / 2**30:.1f} GiB", flush=True)


PARTS = {"kernels": kernels, "loss": loss, "step": step}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--kernels", nargs="+", default=["compiled", "triton"])
    parser.add_argument("--widths", nargs="+", type=int, default=[512, 4096])
    sizes = {"tokens": 4096, "vocabulary": 151_936, "k": 64, "hidden": 4096, "documents": 8, "length": 1024, "rounds": 7}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    if a.device.type == "cuda":
        print(torch.cuda.get_device_name(a.device), torch.__version__, flush=True)
    for part in a.parts:
        PARTS[part](a)


if __name__ == "__main__":
    main()
