"""Engines that have made one step: what they hold, saved to be loaded by another number of processes."""

from pathlib import Path

import torch
from gradient_worker import BATCHES, Case, gradient_job, one_step, open_engine

from stage2_student.checkpoint import Checkpoints, Position
from stage2_student.engine import StudentEngine
from stage2_student.support import Engine
from stage2_student.train import _Run

ENGINES = [Engine(0, "float32", "none"), Engine(1, "bfloat16", "none"), Engine(2, "float32", "optimizer"), Engine(3, "bfloat16", "all")]


def opened(root: Path, engine: Engine) -> tuple[_Run, StudentEngine, Checkpoints]:
    run, made = open_engine(gradient_job(root, Case(engine, False, "freeze")))
    return run, made, Checkpoints(root / "reshaped" / "-".join(map(str, engine)) / "checkpoints", 1, run.processes)


def whole_state(engine: StudentEngine) -> dict[str, torch.Tensor]:
    """Float32 weights and Adam's moments by name, and the weights that are computed with."""
    from deepspeed.utils import safe_get_full_optimizer_state

    state = engine.weights()
    for name, parameter in engine.model.named_parameters():
        state[f"live {name}"] = engine._full(parameter).cpu()
        for moment in ("exp_avg", "exp_avg_sq") if parameter.requires_grad else ():
            whole = engine.settings.zero == 0
            state[f"{moment} {name}"] = (
                engine.optimizer.state[parameter][moment] if whole else safe_get_full_optimizer_state(parameter, moment)
            ).cpu()
    return state


def save_states(root: Path) -> dict[Engine, dict[str, torch.Tensor]]:
    return {engine: _save(root, engine) for engine in ENGINES}


def _save(root: Path, engine: Engine) -> dict[str, torch.Tensor]:
    run, made, checkpoints = opened(root, engine)
    one_step(run, made, BATCHES["ragged"], 100, rate=1e-3)
    checkpoints.save(made, Position(2, 1, run.processes.world_size, engine.zero, str(made.dtype), engine.offload), 1)
    state = whole_state(made)
    made.close()
    return state
