"""A short run of `freeze` under every line of the support table, and what its engines held at each phase's end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from runs import job

from stage2_student import train as loop
from stage2_student.engine import StudentEngine
from stage2_student.job import StudentJob
from stage2_student.support import SUPPORTED, Engine

State = dict[str, torch.Tensor]

PROMPT = torch.arange(1, 40, 3)[None]  # [1, T]


class End(NamedTuple):
    """One engine: the weights it was given, and at its end what it computes with, whole, and the logits of PROMPT."""

    given: State
    live: State
    logits: torch.Tensor


def support_job(root: Path, engine: Engine) -> StudentJob:
    shape = {"blocks": 2, "layers_per_block": 1, "initializer_range": 0.2}
    name = "-".join(map(str, engine))
    return job(root, **engine._asdict(), curriculum="freeze", norm="post", model=shape, steps=2, name=name, gradient_checkpointing=True)


def run_line(root: Path, engine: Engine) -> list[End]:
    """Train, and look at each phase's engine before it is closed."""
    ends: list[End] = []

    class Watched(StudentEngine):
        def __init__(self, model: Any, settings: Any, processes: Any, is_trained: Callable[[str], bool]) -> None:
            self.given = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            super().__init__(model, settings, processes, is_trained)

        def close(self) -> None:
            live = {name: self._full(parameter).cpu() for name, parameter in self.model.named_parameters()}
            with torch.no_grad():
                ends.append(End(self.given, live, self.model.eval()(PROMPT).logits))
            super().close()

    with patch.object(loop, "StudentEngine", Watched):
        loop.train(support_job(root, engine))
    return ends


def all_lines(root: Path) -> dict[Engine, list[End]]:
    return {engine: run_line(root, engine) for engine in SUPPORTED}
