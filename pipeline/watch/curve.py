"""A curve of bounded size: what a page draws of a run of any length."""

import math
from collections.abc import Iterator

from pipeline.report.records import Point

LONGEST = 512
"""Points a phase, before neighbours are merged."""


class Curve:
    """Values over optimizer steps. A phase's points are merged to means of 2, 4, 8, ... neighbours as they become many.

    Phases stay apart: a jump between two is not averaged away. NaN and infinities leave a gap.
    """

    def __init__(self) -> None:
        self._phases: dict[int, _Stretch] = {}

    def add(self, phase: int, step: int, value: float) -> None:
        self._phases.setdefault(phase, _Stretch()).add(step, value)

    def points(self) -> tuple[Point, ...]:
        """In order of steps; each at the last step it is a mean of."""
        return tuple(point for phase in sorted(self._phases) for point in self._phases[phase].points())


class _Stretch:
    """The points of one phase: whole means, and the values that wait for one."""

    def __init__(self) -> None:
        self._whole: list[Point] = []
        self._waiting: list[Point] = []
        self._each = 1

    def add(self, step: int, value: float) -> None:
        self._waiting.append((step, value))
        if len(self._waiting) < self._each:
            return
        self._whole.append(_mean(self._waiting))
        self._waiting = []
        if len(self._whole) == LONGEST:
            pairs = zip(self._whole[::2], self._whole[1::2], strict=True)
            self._whole, self._each = [_mean(pair) for pair in pairs], 2 * self._each

    def points(self) -> Iterator[Point]:
        yield from self._whole
        if self._waiting:
            yield _mean(self._waiting)


def _mean(points: "list[Point] | tuple[Point, ...]") -> Point:
    finite = [value for _, value in points if math.isfinite(value)]
    return points[-1][0], math.fsum(finite) / len(finite) if finite else math.nan
