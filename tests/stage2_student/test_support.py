"""The support table is true, line by line, on one process and on two: what should move moved, what is frozen is bit-equal, and what
is written loads again (field cases 40, 41, 46). What is not in it is refused in one line."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from gradient_worker import Case, gradient_job, open_engine
from runs import phase_state, train_arguments
from support_runs import PROMPT, End, all_lines, support_job

from stage2_student.model.parameters import count_parameters
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.support import SUPPORTED, Engine, support_table

LINES = pytest.mark.parametrize("engine", SUPPORTED, ids=lambda engine: "-".join(map(str, engine)))
PROCESSES = pytest.mark.parametrize("processes", [1, 2])


@pytest.fixture(scope="module")
def found(two_processes, module_root) -> dict[int, tuple]:
    """By number of processes: the artifact root, and the ends of each line's engines."""
    alone = all_lines(module_root)
    return {1: (module_root, alone), 2: (two_processes()["root"], two_processes()["lines"])}


@PROCESSES
@LINES
def test_what_trains_moves_and_what_is_frozen_is_bit_equal(found, engine, processes):
    root, lines = found[processes]
    for phase, end in enumerate(lines[engine]):
        written = phase_state(support_job(root, engine).folder, phase)
        assert written.keys() == end.given.keys() == end.live.keys()
        trained = {name for name in written if name != "embed_tokens.weight" and (phase == 0 or name.startswith("blocks.1."))}
        assert {name for name in written if not torch.equal(written[name], end.given[name])} == trained
        assert_live_is_written(engine, end, written)


def assert_live_is_written(engine: Engine, end: End, written: dict[str, torch.Tensor]) -> None:
    """What the engine computes with is what is written, in its own precision."""
    dtype = getattr(torch, engine.precision)
    assert all(end.live[name].dtype == dtype and torch.equal(end.live[name], written[name].to(dtype)) for name in written)


@PROCESSES
@LINES
def test_a_phase_loads_again_with_every_parameter_and_equal_logits(found, engine, processes):
    root, lines = found[processes]
    student = BlockStackForCausalLM.from_pretrained(support_job(root, engine).record.phase(1), dtype=getattr(torch, engine.precision))
    assert sum(p.numel() for p in student.parameters()) == count_parameters(student.config)["total"] > 20_000
    with torch.no_grad():
        torch.testing.assert_close(student.eval()(PROMPT).logits, lines[engine][1].logits, rtol=1e-5, atol=1e-5)


@LINES
def test_the_endpoint_does_not_know_the_engine(found, engine):
    """Rounding apart: Adam divides what is nearly zero by what is nearly zero."""
    mine, theirs = (
        {n: json.loads((support_job(found[n][0], e).folder / "result.json").read_text()) for n in (1, 2)} for e in (engine, SUPPORTED[0])
    )
    near = 1e-4 if engine.precision == "float32" else 0.02
    assert [mine[n]["val_ce"] for n in (1, 2)] == pytest.approx([theirs[1]["val_ce"]] * 2, rel=near)
    assert [mine[n]["tokens_total"] for n in (1, 2)] == [theirs[1]["tokens_total"]] * 2


def test_stage_three_really_keeps_parts(module_root):
    """Were every parameter small enough to be kept whole, this file would prove nothing of stage 3."""
    _, engine = open_engine(gradient_job(module_root, Case(Engine(3, "float32", "none"), False, "joint")))
    whole = {name for name, parameter in engine.model.named_parameters() if parameter.ds_persist}
    held = {name for name, parameter in engine.model.named_parameters() if parameter.numel() > 0}
    engine.close()
    assert held <= whole and all("norm" in name for name in whole) and len(whole) == 13


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_small_model_s_engine_reserves_little(module_root, zero):
    """DeepSpeed's buckets of 500 million elements are gigabytes, and a process of as many as the machine has cannot fork loaders."""
    before = reserved_gib()
    _, engine = open_engine(gradient_job(module_root, Case(Engine(zero, "float32", "none"), False, "joint")))
    after = reserved_gib()
    engine.close()
    assert after - before < 0.5


def reserved_gib() -> float:
    """Of this process: writable memory it alone has, touched or not."""
    return int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0]) / 2**20


# --- the table, and what is not in it ---


def test_a_dry_run_prints_the_table(root, pipeline):
    code, out, _ = pipeline(*train_arguments(root.absolute(), "dry", "--dry-run"))
    assert code == 0 and json.loads(out)["supported"] == support_table()
    arguments = [argument for argument in train_arguments(root.absolute(), "dry", "--dry-run") if argument != "--json"]
    code, out, _ = pipeline(*arguments)
    assert code == 0 and "ZeRO 3: float32 and bfloat16, offload none or optimizer or all" in " ".join(out.split())


@pytest.mark.parametrize(
    ("settings", "move"),
    [
        ({"zero": 0, "precision": "bfloat16"}, "--zero 1"),
        ({"zero": 0, "offload": "optimizer"}, "--set offload=none"),
        ({"zero": 2, "offload": "all"}, "--zero 3"),
    ],
)
@pytest.mark.parametrize("more", [["--dry-run"], []])
def test_anything_else_is_refused_in_one_line(root, pipeline, settings, move, more):
    code, out, err = pipeline(*train_arguments(root.absolute(), "refused", *more, **settings))
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert code == 2 and not out and move in line and all(f"{key}={value}" in line for key, value in settings.items())
    assert not (root / "runs/refused").exists()


def test_deepspeed_still_has_no_float32_accumulation_without_zero(module_root):
    """The reason that the table gives; once this fails, the line can go in."""
    chosen = gradient_job(module_root, Case(Engine(0, "float32", "none"), False, "joint"))
    forced = chosen.settings.model_copy(update={"precision": "bfloat16"})
    with pytest.MonkeyPatch.context() as patch, pytest.raises(NotImplementedError, match="unsupported mix"):
        patch.setattr("stage2_student.engine.require_supported", lambda engine: None)
        open_engine(replace(chosen, settings=forced))
