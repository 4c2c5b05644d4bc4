"""Accumulated steps on every kind of engine, by the training loop's own code; rank 0 has the gradients.

An engine is made once and steps at a learning rate of zero, so that every batch meets the same weights.
"""

from pathlib import Path
from typing import NamedTuple

import torch
from runs import job

from stage2_student.batches import MicroBatches
from stage2_student.curriculum import phases
from stage2_student.engine import Processes, StudentEngine
from stage2_student.job import StudentJob
from stage2_student.micro_batches import plan_packed, plan_padded
from stage2_student.phase_models import first_model
from stage2_student.support import SUPPORTED, Engine
from stage2_student.train import _Run

Gradients = dict[str, torch.Tensor]

BATCHES = {"ragged": [0, 3, 5, 7, 8, 11, 2], "one short document a rank": [4, 0]}
BUDGETS = {"one document": 1, "some": 100, "all": 10_000}
"""Input tokens a micro-batch: as many micro-batches as documents, a few, and one of all."""


class Step(NamedTuple):
    """A batch, a budget, and how documents lie: padded, or one behind the other."""

    batch: str
    budget: str
    attention: str

    def __str__(self) -> str:
        return ", ".join(self)


STEPS = [Step("ragged", budget, attention) for attention in ("padded", "varlen") for budget in BUDGETS]
STEPS += [Step("one short document a rank", "some", attention) for attention in ("padded", "varlen")]


class Case(NamedTuple):
    """One engine: how it is carried out, whether activations are recomputed, and what trains."""

    engine: Engine
    recompute: bool
    curriculum: str

    def __str__(self) -> str:
        return f"zero {self.engine.zero} {self.engine.offload} {'recomputed' if self.recompute else 'kept'} {self.curriculum}"


EXACT = [engine for engine in SUPPORTED if engine.precision == "float32"]
CASES = [Case(engine, False, "joint") for engine in EXACT]
CASES += [Case(engine, True, curriculum) for engine in EXACT if engine.offload == "none" for curriculum in ("joint", "freeze")]


def gradient_job(root: Path, case: Case) -> StudentJob:
    return job(root, **case.engine._asdict(), curriculum=case.curriculum, norm="post", gradient_checkpointing=case.recompute)


def open_engine(chosen: StudentJob) -> tuple[_Run, StudentEngine]:
    """The last phase's engine on fresh weights of all blocks."""
    run, phase = _Run(chosen, Processes(), lambda record: None), phases(chosen.settings)[-1]
    return run, run.open_engine(first_model(chosen, phase.active_blocks), phase)


def one_step(run: _Run, engine: StudentEngine, indices: list[int], budget: int, attention: str = "varlen", rate: float = 0.0) -> Gradients:
    """Gradients by name before the optimizer, the norm that the step reports, the step's summed loss parts."""
    lengths, packed = [int(run.documents.input_tokens[index]) for index in indices], attention == "varlen"
    plan = (plan_packed if packed else plan_padded)(lengths, run.processes.world_size, budget)[run.processes.rank]
    read = MicroBatches(run.documents, engine.model.config.vocab_size, 1.0, packed)
    batches = (read[[indices[place] for place in members]] for members in plan)
    sums = run._accumulate(engine, batches, len(plan), sum(lengths) - len(lengths))
    found = engine.gradients()
    found["sums"] = run.processes.sum(sums)
    found["norm"] = torch.tensor(engine.step(rate))
    return found


def gradients(root: Path, case: Case, steps: list[tuple[list[int], int, str]]) -> list[Gradients]:
    """Of steps of documents, a budget and how documents lie, from one engine."""
    run, engine = open_engine(gradient_job(root, case))
    found = [one_step(run, engine, *step) for step in steps]
    engine.close()
    return found


def all_cases(root: Path) -> dict[str, dict[Step, Gradients]]:
    """By case and step."""
    torch.set_num_threads(1)
    steps = [(BATCHES[batch], BUDGETS[budget], attention) for batch, budget, attention in STEPS]
    return {str(case): dict(zip(STEPS, gradients(root, case, steps), strict=True)) for case in CASES}
