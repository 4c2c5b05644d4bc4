"""Jump, area and recovery against closed forms; append and restart told apart; gaps that say what is missing."""

import math
from typing import Any

import numpy as np
import pytest

from stage2_student.diagnostics.transition_response import response, scaled, transition_response

WINDOWS = {"smoothing": 20, "auc_1k": 100, "auc_5k": 500}
FLAT = np.full(50, 2.5)


def test_windows_are_the_papers_shares():
    assert [scaled(window, 50_000) for window in (200, 1000, 5000)] == [200, 1000, 5000]
    assert [scaled(window, 2_000) for window in (200, 1000, 5000)] == [8, 40, 200]
    assert scaled(200, 5) == 1


@pytest.mark.parametrize("size", [0.3, -0.2])
def test_a_decaying_jump(size):
    """excess(t) = a q^t: every measure is a geometric sum."""
    q = 0.98
    found = response(FLAT, 2.5 + size * q ** np.arange(600), WINDOWS)
    mean = {window: size * (1 - q**window) / (1 - q) / window for window in (20, 100, 500)}
    assert found["baseline"] == 2.5 and found["first_step"] == pytest.approx(size)
    assert [found[name] for name in ("jump", "auc_1k", "auc_5k")] == pytest.approx(list(mean.values()))
    assert found["recovery_steps"] == ("not within 600 steps" if size > 0 else 20)


def test_areas_below_the_baseline_count_as_negative():
    after = 2.5 + np.where(np.arange(600) < 50, 1.0, -1.0)
    assert response(FLAT, after, WINDOWS)["auc_1k"] == pytest.approx(0.0)


@pytest.mark.parametrize(("above", "height"), [(100, 1.0), (37, 3.0), (0, 1.0)])
def test_recovery_is_the_first_step_whose_trailing_mean_is_back(above, height):
    """`height` above for `above` steps, then 1 below: after k steps below the mean of 20 is back when k >= (20 - k) height."""
    after = 2.5 + np.where(np.arange(600) < above, height, -1.0)
    expected = max(20, above + math.ceil(20 * height / (1 + height)))
    assert response(FLAT, after, WINDOWS)["recovery_steps"] == (expected if above else 20)


def test_a_mean_that_looked_ahead_would_be_back_earlier():
    after = 2.5 + np.where(np.arange(600) < 40, 1.0, -1.0)
    centred = next(t + 1 for t in range(10, 590) if after[t - 10 : t + 10].mean() <= 2.5)
    assert response(FLAT, after, WINDOWS)["recovery_steps"] == 50 > centred


def test_the_baseline_is_the_end_of_the_phase_before():
    before = np.concatenate([np.full(80, 9.0), np.full(20, 2.0)])
    assert response(before, np.full(600, 3.0), WINDOWS)["baseline"] == 2.0


def test_a_series_that_is_too_short_or_not_finite_says_so():
    short = response(FLAT, np.full(60, 3.0), WINDOWS)
    assert short["jump"] == pytest.approx(0.5) and short["auc_1k"] == "60 of 100 steps on record"
    assert response(FLAT[:5], np.full(600, 3.0), WINDOWS)["jump"] == "the phase before has 5 steps, fewer than 20"
    after = np.full(600, 3.0)
    after[70] = np.nan
    found = response(FLAT, after, WINDOWS)
    assert found["jump"] == pytest.approx(0.5) and found["auc_1k"] == found["recovery_steps"] == "not finite"
    assert response(FLAT, np.full(3, 3.0), WINDOWS)["recovery_steps"] == "3 of 20 steps on record"


# --- from records ---


def train_record(phase: int, phase_step: int, steps: int, loss: float | None) -> dict[str, Any]:
    return {
        "kind": "train",
        "phase": phase,
        "phase_step": phase_step,
        "step": phase * steps + phase_step,
        "train/loss": loss,
        "train/ce": None if loss is None else 2 * loss,
        "growth/active_layers": phase + 1,
    }


def probe_record(phase: int, phase_step: int, ce: float | None) -> dict[str, Any]:
    return {"kind": "probe", "phase": phase, "phase_step": phase_step, "probe/ce": ce}


def records(steps: int = 50, ends: tuple[int, ...] = (50, 50)) -> list[dict[str, Any]]:
    return [train_record(phase, step, steps, 3.0 - phase) for phase, end in enumerate(ends) for step in range(1, end + 1)]


def test_transitions_are_read_from_the_records():
    (found,) = transition_response(records(), 50)["transitions"]
    assert (found["phase"], found["step"], found["layers_before"], found["layers"]) == (1, 50, 1, 2)
    assert found["loss"]["jump"] == -1.0 and found["ce"]["jump"] == -2.0 and "remark" not in found


def test_a_joint_run_and_a_short_phase_say_so():
    assert transition_response(records(ends=(50,)), 50)["transitions"] == "no transition on record: one phase"
    assert transition_response([], 50)["transitions"] == "no transition on record: one phase"
    (found,) = transition_response(records(ends=(40, 3)), 50)["transitions"]
    assert found["remark"] == "the phase before is on record up to step 40 only"
    assert found["loss"]["auc_5k"] == "3 of 5 steps on record"


def test_a_loss_of_none_is_not_a_crash():
    metrics = [*records(ends=(50,)), train_record(1, 1, 50, None), train_record(1, 2, 50, 1.0)]
    assert transition_response(metrics, 50)["transitions"][0]["loss"]["first_step"] == "not finite"


def probed(*after: float | None, before: float | None = 3.0) -> dict[str, Any]:
    metrics = [*records(), probe_record(0, 50, before)]
    metrics += [probe_record(1, step, ce) for step, ce in zip((0, 4, 8, 16, 32, 50), after, strict=False)]
    return transition_response(metrics, 50)["transitions"][0]["probe"]


def test_an_append_that_only_heals_has_no_restart_rise():
    found = probed(5.0, 4.5, 4.0, 3.5)
    assert found["points"] == [[-1, 3.0], [0, 5.0], [4, 4.5], [8, 4.0], [16, 3.5]]
    assert (found["append_jump"], found["restart_rise"], found["restart_peak_step"]) == (2.0, 0.0, "none")


def test_a_rise_after_the_append_is_the_restarts():
    found = probed(3.125, 3.0625, 3.25, 3.5, 3.125)
    assert (found["append_jump"], found["restart_rise"], found["restart_peak_step"]) == (0.125, 0.4375, 16)


def test_probes_that_are_missing_or_not_finite_say_so():
    assert probed()["append_jump"] == "no probe on record"
    found = probed(3.0, None)
    assert found["points"][-1] == [4, "not finite"] and found["restart_rise"] == "not finite" and found["append_jump"] == 0.0
    assert probed(3.0, before=None)["append_jump"] == "no finite value on both sides"
