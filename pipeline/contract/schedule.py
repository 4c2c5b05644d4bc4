"""The learning rate as a pure function of the step in its phase: the same after any resume, on any number of ranks."""

import math
from typing import Protocol


class Schedule(Protocol):
    """Settings of what trains by this schedule: a phase of a student, or a small teacher."""

    @property
    def steps(self) -> int: ...
    @property
    def learning_rate(self) -> float: ...
    @property
    def learning_rate_min(self) -> float: ...
    @property
    def warmup_ratio(self) -> float: ...


def warmup_steps(settings: Schedule) -> int:
    """Optimizer steps of linear warm-up: `warmup_ratio` of the phase, at least one."""
    return max(1, round(settings.warmup_ratio * settings.steps))


def learning_rate(phase_step: int, settings: Schedule) -> float:
    """The rate of update `phase_step` (0-based, restarting with every phase): linear to the peak, then a cosine to the minimum.

    The first update already moves: it has rate peak / warmup_steps.
    """
    warmup = warmup_steps(settings)
    if phase_step < warmup:
        return settings.learning_rate * ((phase_step + 1) / warmup)
    progress = (phase_step - warmup + 1) / max(1, settings.steps - warmup)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return settings.learning_rate_min + (settings.learning_rate - settings.learning_rate_min) * cosine
