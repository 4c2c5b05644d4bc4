"""Curves stay small, and every point is a mean of what it stands for."""

import math

import pytest

from pipeline.watch.curve import LONGEST, Curve


def test_short_curves_are_kept_whole():
    curve = Curve()
    for step in range(1, LONGEST):
        curve.add(0, step, step / 7)
    assert curve.points() == tuple((step, step / 7) for step in range(1, LONGEST))


@pytest.mark.parametrize("count", [LONGEST, 5_000, 150_000])
def test_long_ones_are_means_of_equal_stretches(count):
    curve = Curve()
    for step in range(1, count + 1):
        curve.add(0, step, float(step))
    points = curve.points()
    assert len(points) <= LONGEST and points[-1][0] == count
    ends = [0, *(step for step, _ in points)]
    assert [value for _, value in points] == pytest.approx([(before + 1 + end) / 2 for before, end in zip(ends, ends[1:])])
    assert len({end - before for before, end in zip(ends[:-1], ends[1:-1])}) == 1


def test_phases_are_not_averaged_together():
    curve = Curve()
    for step in range(1, 1_000):
        curve.add(0, step, 1.0)
    for step in range(1_000, 2_001):
        curve.add(1, step, 5.0)
    assert {value for _, value in curve.points()} == {1.0, 5.0}


def test_what_is_no_number_leaves_a_gap_only_where_nothing_else_is():
    curve = Curve()
    for step in range(1, LONGEST + 1):  # pairs are merged at the last one
        curve.add(0, step, math.nan if step in (1, 3, 4) else 2.0)
    first, second, *others = [value for _, value in curve.points()]
    assert first == 2.0 and math.isnan(second) and set(others) == {2.0}
