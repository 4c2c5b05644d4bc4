"""Rates, newest values and guard rails, against what the records were made of."""

import json
import math

import pytest
from watched_runs import STEPS, guard_record, train_record, val_record

from pipeline.watch.run_metrics import EVENTS, RECENT, RunMetrics


def taken(*records):
    metrics = RunMetrics()
    for record in records:
        metrics.take((json.dumps(record) + "\n").encode())
    return metrics


def test_rates_are_of_the_newest_updates():
    slow, quick = [train_record(step, seconds=5.0) for step in range(1, 11)], [train_record(11 + i, seconds=0.5) for i in range(RECENT)]
    assert taken(*slow, *quick).tokens_per_second() == pytest.approx(200)
    assert taken(*slow, *quick[:10]).tokens_per_second() == pytest.approx(20 * 100 / (10 * 5 + 10 * 0.5))


def test_a_step_takes_its_share_of_evaluations_and_checkpoints():
    between = {"perf/seconds/evaluate": 8.0, "perf/seconds/checkpoint": 2.0}
    metrics = taken(train_record(1, **between), *(train_record(step) for step in range(2, 11)))
    assert metrics.seconds_per_step() == pytest.approx(0.5 + 10 / 10)


def test_another_phase_begins_its_rates_anew():
    metrics = taken(*(train_record(step, seconds=9.0) for step in range(1, STEPS + 1)), val_record(STEPS, 1, 3.0))
    assert metrics.seconds_per_step() is None and metrics.tokens_per_second() is None
    metrics.take(json.dumps(train_record(STEPS + 1, seconds=2.0)).encode())
    assert metrics.seconds_per_step() == pytest.approx(2) and metrics.starts == {STEPS}


def test_newest_values_and_nan_as_it_stands():
    metrics = taken(train_record(1), val_record(1, 0, 4.5), train_record(2, loss=math.nan))
    assert metrics.value("val", "val/ce") == 4.5 and math.isnan(metrics.value("train", "train/loss"))
    assert metrics.value("train", "no/such") is None and metrics.value("probe", "val/ce") is None
    assert metrics.loss.points()[0][1] == train_record(1)["train/loss"]


def test_guard_rails_are_counted_and_the_last_ones_kept():
    metrics = taken(*(guard_record(step, "loss_spike") for step in range(1, 9)), guard_record(9, "nonfinite", loss="nan"))
    assert metrics.guards == {"loss_spike": 8, "nonfinite": 1}
    assert [record["step"] for record in metrics.events] == list(range(10 - EVENTS, 10))


@pytest.mark.parametrize(
    "line", [b"not json\n", b"[1]\n", b"{}\n", b'{"kind": "train", "step": "x", "phase": 0, "phase_step": 0}\n', b"\xff\n"]
)
def test_what_is_no_record_is_counted_and_passed_over(line):
    metrics = taken(train_record(1))
    metrics.take(line)
    metrics.take(json.dumps(train_record(2)).encode())
    assert (metrics.unreadable, metrics.records, metrics.place) == (1, 2, (2, 0, 2))


def test_values_of_another_type_are_no_numbers():
    metrics = taken(train_record(1) | {"train/loss": "high", "perf/seconds": None, "tokens": True})
    assert math.isnan(metrics.value("train", "train/loss")) and metrics.tokens_per_second() is None
