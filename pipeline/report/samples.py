"""One value a seed: their mean, what their spread says of it, and differences that are taken seed by seed."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, Literal

from pipeline.report.t_distribution import critical_t, resolvable

NO_SPREAD = 1e-9
"""Nats: seeds that agree to so little are copies of one run, and say nothing of noise."""


@dataclass(frozen=True)
class Sample:
    """`gap` says why there is no value; `inputs` is what the values were measured on, by the name of what it is."""

    by_seed: Mapping[int | None, float]
    gap: str = ""
    left_out: tuple[str, ...] = ()
    inputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> float | None:
        return None if self.gap else fmean(self.by_seed.values())

    @property
    def shown(self) -> float | str:
        return self.gap or fmean(self.by_seed.values())

    @property
    def n(self) -> int:
        return 0 if self.gap else len(self.by_seed)

    @property
    def no_noise(self) -> str:
        """Why nothing is known of the noise; empty where it is known."""
        values = self.by_seed.values()
        if self.gap or len(values) < 2:
            return self.gap or "one seed"
        return "no spread" if max(values) - min(values) < NO_SPREAD else ""

    @property
    def deviation(self) -> float | None:
        """Standard deviation over seeds."""
        return None if self.no_noise else stdev(self.by_seed.values())

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the mean, two-sided 95% by Student's t."""
        error = self._standard_error
        if error is None:
            return None
        mean, half = fmean(self.by_seed.values()), critical_t(self.n - 1) * error
        return mean - half, mean + half

    @property
    def resolvable(self) -> float | None:
        """The smallest true effect found in 80 of 100 such sets of seeds at alpha 5%, were the spread over seeds the one seen."""
        error = self._standard_error
        return None if error is None else resolvable(self.n - 1) * error

    @property
    def sign(self) -> Literal["negative", "positive", "not resolved"] | None:
        """The sign that the interval supports; None where there is no interval."""
        if self.interval is None:
            return None
        low, high = self.interval
        return "positive" if low > 0 else "negative" if high < 0 else "not resolved"

    @property
    def _standard_error(self) -> float | None:
        return None if self.deviation is None else self.deviation / math.sqrt(self.n)


def paired(terms: Sequence[tuple[int, Sample]]) -> Sample:
    """The sum of factor x cell for each seed that all cells hold: noise that a seed brings to every cell cancels.

    A gap where a cell has one, where cells were measured on different things, or share no seed.
    """
    cells = [cell for _, cell in terms]
    if any(cell.gap for cell in cells):
        return Sample({}, "needs both" if len(cells) == 2 else f"needs all {len(cells)}")
    different = different_inputs([cell.inputs for cell in cells])
    shared = set.intersection(*(set(cell.by_seed) for cell in cells))
    if different or not shared:
        return Sample({}, f"different {different}" if different else "no seed in common")
    sums = {seed: sum(factor * cell.by_seed[seed] for factor, cell in terms) for seed in sorted(shared, key=str)}
    return Sample(sums, inputs=cells[0].inputs)


def different_inputs(each: Sequence[Mapping[str, Any]]) -> str:
    """The first thing that is not the same in all; what is not recorded is taken as the same."""
    names = dict.fromkeys(name for inputs in each for name in inputs)
    return next((name for name in names if len({str(inputs[name]) for inputs in each if inputs.get(name) is not None}) > 1), "")
