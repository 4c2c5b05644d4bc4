"""Runs that do not belong together, are not whole or hold no numbers: said where the number would stand, never a crash."""

import copy
import json
import math
import random

import pytest
from test_diagnosed import diagnosed, table_4  # noqa: F401  (a fixture)
from test_report import change, rows_of

from pipeline.report.diagnostic_figures import boundary_scale, removal_bars, rms_distribution, token_type_scale
from pipeline.report.figures import drawings
from pipeline.report.noise import comparisons
from pipeline.report.paper import load_paper
from pipeline.report.records import read_runs

JUNK = [None, "text", math.nan, math.inf, [], {}, -1, [1, "a"], True]


def config(folder, **values):
    change(folder, "config", lambda record: record.update(values))


def by_name(out, slug, name):
    return {row[name]: row for row in rows_of(out, slug)}


@pytest.mark.parametrize(
    ("values", "gap"),
    [
        ({"teacher": "package:other"}, "different teachers"),
        ({"shard": "other"}, "different shards"),
        ({"cache_fingerprint": "cd34"}, "different cache fingerprints"),
    ],
)
def test_cells_of_different_inputs_are_not_subtracted(four, tmp_path, undrawn, built, values, gap):
    config(four["grow", "post"], **values)
    report, page = built(four.values(), tmp_path / "out")
    joint, grow, interaction = rows_of(tmp_path / "out", "table-1")
    assert (grow["post - pre"], interaction["post - pre"]) == (gap, gap) and float(grow["post"]) == 2.7330
    assert float(joint["post - pre"]) == pytest.approx(0.0004)
    assert report.table_1["grow"]["delta"] is None and report.table_1["interaction"] is None
    assert by_name(tmp_path / "out", "noise", "difference")["interaction"]["mean"] == gap
    assert f"{gap.replace('d', 'D', 1)} (" in page


def test_runs_validated_on_different_documents_are_not_subtracted(four, tmp_path, undrawn, built):
    change(four["joint", "pre"], "result", lambda result: result.update(val_tokens=3_999))
    built(four.values(), tmp_path / "out")
    assert rows_of(tmp_path / "out", "table-1")[0]["post - pre"] == "different validation documents"


def test_seeds_of_one_cell_with_different_teachers_are_no_mean(four, tmp_path, undrawn, built, write_run):
    other = write_run(tmp_path / "more", "pre", "joint", 3.0, seed=43)
    config(other, teacher="package:other")
    _, page = built([*four.values(), other], tmp_path / "out")
    row = rows_of(tmp_path / "out", "table-1")[0]
    assert (row["pre"], row["post - pre"], row["seeds"]) == ("different teachers", "needs both", "pre 0, post 1")
    assert "Not in these numbers: pre-joint-seed42, pre-joint-seed43." in page


def test_cells_without_a_seed_in_common_are_not_subtracted(four, tmp_path, undrawn, built):
    config(four["grow", "post"], settings=four["grow", "post"].read("config")["settings"] | {"seed": 43})
    built(four.values(), tmp_path / "out")
    _, grow, interaction = rows_of(tmp_path / "out", "table-1")
    assert (grow["post - pre"], interaction["post - pre"]) == ("no seed in common", "no seed in common")
    assert float(grow["pre"]) == 2.7658 and float(grow["post"]) == 2.7330


def test_a_phase_without_its_checkpoint_is_said_and_no_other_stands_in(diagnosed, tmp_path, undrawn, built):  # noqa: F811
    change(diagnosed["grow", "pre"], "diagnostics/removal", lambda record: record["checkpoints"].pop())
    change(diagnosed["grow", "pre"], "diagnostics/boundary", lambda record: record["checkpoints"].pop(1))
    lost = {"found": "phase-1 is not there: the phase is not finished, or its folder was removed"}
    change(diagnosed["grow", "post"], "diagnostics/token_types", lambda record: record["checkpoints"][1].update(lost))
    built(diagnosed.values(), tmp_path / "out")
    row = table_4(tmp_path / "out")["pre-grow", "CE rise"]
    assert (row["block 0"], row["seeds"]) == ("phase-2 not in the record", "0")
    assert "Not drawn: pre-grow-seed42 (phase-1 not in the record)." in caption(boundary_scale, diagnosed)
    assert "Not drawn: post-grow-seed42 (phase-1 is not there: the phase is not finished" in caption(token_type_scale, diagnosed)


def caption(figure, folders):
    return figure(read_runs(list(folders.values())), load_paper()).caption


def test_a_diagnostic_that_is_no_number_is_said(diagnosed, tmp_path, undrawn, built):  # noqa: F811
    change(diagnosed["grow", "pre"], "diagnostics/removal", lambda r: r["checkpoints"][-1]["found"]["blocks"][1].update(delta_ce=math.nan))
    change(diagnosed["grow", "pre"], "diagnostics/boundary", lambda r: r["checkpoints"][2]["found"][0].update(mean=math.inf))
    change(
        diagnosed["joint", "pre"],
        "diagnostics/boundary",
        lambda r: r["checkpoints"][0]["found"][0]["histogram"].update(counts=[5, math.nan]),
    )
    built(diagnosed.values(), tmp_path / "out")
    row = table_4(tmp_path / "out")["pre-grow", "CE rise"]
    assert (row["block 0"], row["block 1"], row["block 1, difference"]) == ("8.13", "not a number", "")
    for figure, run in ((boundary_scale, "pre-grow"), (removal_bars, "pre-grow"), (rms_distribution, "pre-joint")):
        assert f"Not drawn: {run}-seed42 (not a number)." in caption(figure, diagnosed)


def test_figures_of_runs_on_different_data_say_so(four, tmp_path):
    config(four["grow", "post"], teacher="package:other")
    runs = read_runs(list(four.values()))
    drawn = drawings(runs, load_paper(), comparisons(runs, load_paper()))
    assert all("The runs have different teachers" in figure.caption for figure in drawn)
    assert "Not drawn: post - pre, grow, learning rate not recorded (different teachers), interaction" in drawn[1].caption


@pytest.mark.parametrize(
    ("record", "text", "said"),
    [
        ("result", "[]", "result.json holds no mapping"),
        ("config", "3", "config.json holds no mapping"),
        ("config", '{"settings": []}', "config.json has no mapping of settings"),
        ("metrics.jsonl", "3\n", "metrics.jsonl has a line that is no record"),
    ],
)
def test_json_that_is_no_record_is_a_problem_of_its_run(four, tmp_path, undrawn, built, record, text, said):
    name = record if "." in record else f"{record}.json"
    (four["grow", "post"].path / name).write_text(text)
    report, page = built(four.values(), tmp_path / "out")
    assert said in page and report.table_1["joint"]["delta"] == pytest.approx(0.0004)


def nodes(value):
    """Every (container, key) of a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from nodes(value[key])


@pytest.mark.parametrize("seed", range(12))
def test_junk_anywhere_in_the_records_is_no_crash(diagnosed, tmp_path, undrawn, built, seed):  # noqa: F811
    """One value of every JSON record of every run is lost or replaced; the report stands, and no number in it is none."""
    choose = random.Random(seed)
    for folder in diagnosed.values():
        for path in sorted(folder.path.rglob("*.json")):
            record = json.loads(path.read_text())
            container, key = choose.choice(list(nodes(record)))
            if choose.random() < 0.2:
                del container[key]
            else:
                container[key] = copy.deepcopy(choose.choice(JUNK))
            path.write_text(json.dumps(record))
    report, _ = built(diagnosed.values(), tmp_path / "out")
    json.dumps(report.table_1, allow_nan=False)
    cells = [cell for table in report.tables for row in table.rows for cell in row]
    assert all(math.isfinite(cell) for cell in cells if isinstance(cell, float))
