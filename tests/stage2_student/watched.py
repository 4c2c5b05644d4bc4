"""An engine that remembers how it started, and the loop with that engine in it."""

from dataclasses import dataclass, field
from typing import Any

import torch

from stage2_student import train as loop
from stage2_student.engine import StudentEngine
from stage2_student.job import StudentJob

State = dict[str, torch.Tensor]


@dataclass
class Start:
    """One engine's beginning: float32 weights it was given, names it trains, freshness before each update, rates it was told."""

    weights: State
    trained: set[str]
    fresh: list[bool] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


def train_watched(job: StudentJob, monkeypatch: Any) -> tuple[dict[str, Any], list[Start]]:
    """Run `job`; its result and the start of each of its engines."""
    starts: list[Start] = []

    class Watched(StudentEngine):
        def __init__(self, model: Any, settings: Any, processes: Any, is_trained: Any) -> None:
            given = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
            super().__init__(model, settings, processes, is_trained)
            starts.append(Start(given, {name for name, parameter in self.model.named_parameters() if parameter.requires_grad}))

        def step(self, learning_rate: float) -> float:
            starts[-1].fresh.append(self.optimizer_is_fresh())
            starts[-1].rates.append(learning_rate)
            return super().step(learning_rate)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "StudentEngine", Watched)
        return loop.train(job), starts
