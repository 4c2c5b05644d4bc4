"""The paper's per-run CE as ordinary run records: they give the paper's derived numbers, and move them when they move."""

import re
import tomllib
from pathlib import Path

import pytest
from test_report import PAPER_TOML, change, rows_of

from pipeline.report.build import build_report
from pipeline.report.paper import load_paper

PAPER = load_paper()
PUBLISHED = {"joint": PAPER.table_1["joint"], **PAPER.freeze}
CELLS = [(curriculum, norm) for curriculum in ("joint", "grow", "freeze") for norm in ("pre", "post")]
# of each derived number, the cells that it is made of and how
DERIVED = {
    "post - pre, joint": {("joint", "post"): 1, ("joint", "pre"): -1},
    "post - pre, grow": {("grow", "post"): 1, ("grow", "pre"): -1},
    "post - pre, freeze": {("freeze", "post"): 1, ("freeze", "pre"): -1},
    "interaction": {("grow", "post"): 1, ("grow", "pre"): -1, ("joint", "post"): -1, ("joint", "pre"): 1},
    "freeze penalty, pre": {("freeze", "pre"): 1, ("grow", "pre"): -1},
    "freeze penalty, post": {("freeze", "post"): 1, ("grow", "post"): -1},
}


@pytest.fixture
def six(tmp_path, write_run):
    return {(c, n): write_run(tmp_path / "runs", n, c, PUBLISHED[c][n]) for c, n in CELLS}


def derived(six, out, **options):
    build_report("six", list(six.values()), out, **options)
    return {row["difference"]: row for row in rows_of(out, "noise")}


def test_the_papers_runs_give_the_papers_differences_interaction_and_penalties(six, tmp_path, undrawn):
    found = derived(six, tmp_path / "out")
    published = {
        "post - pre, joint": PAPER.table_1["joint"]["delta"],
        "post - pre, grow": PAPER.table_1["grow"]["delta"],
        "post - pre, freeze": PAPER.freeze["freeze"]["delta"],
        "interaction": PAPER.interaction,
        "freeze penalty, pre": 0.1446,
        "freeze penalty, post": 0.1442,
    }
    assert {name: round(float(row["mean"]), 4) for name, row in found.items()} == published
    assert {name: round(float(row["paper"]), 4) for name, row in found.items()} == published
    assert all(abs(float(row["mean - paper"])) < 1e-9 and row["seeds"] == "1" for row in found.values())
    *runs, penalty = rows_of(tmp_path / "out", "table-a3")
    assert [round(float(penalty[norm]), 4) for norm in ("pre", "post")] == [0.1446, 0.1442]
    beside = [row for slug in ("table-1", "table-a3") for row in rows_of(tmp_path / "out", slug)]
    off = [float(text) for row in beside for name, text in row.items() if name.endswith(", difference") and text]
    assert len(off) == 2 * (2 * 3) + 1 + 2 and max(map(abs, off)) < 1e-9


@pytest.mark.parametrize("cell", CELLS, ids="-".join)
def test_a_perturbed_run_moves_each_number_that_is_made_of_it(six, tmp_path, undrawn, cell):
    before = derived(six, tmp_path / "before")
    change(six[cell], "result", lambda result: result["phases"][-1].update(val_ce=result["phases"][-1]["val_ce"] + 0.0125))
    after = derived(six, tmp_path / "after")
    moved = {name: float(after[name]["mean"]) - float(before[name]["mean"]) for name in DERIVED}
    assert moved == {name: pytest.approx(0.0125 * terms.get(cell, 0), abs=1e-12) for name, terms in DERIVED.items()}
    assert {row["paper"] for row in after.values()} == {row["paper"] for row in before.values()}


def test_the_paper_columns_of_every_table_come_from_the_data_file_alone(six, tmp_path, undrawn):
    """Every number of the file with a decimal point times three: those columns follow, and none of ours does."""
    tripled = tmp_path / "tripled.toml"
    tripled.write_text(re.sub(r"(?<![\de_])\d+\.\d+(?![\de])", lambda found: repr(3 * float(found[0])), PAPER_TOML.read_text()))
    reports = [
        build_report("six", list(six.values()), tmp_path / out, paper=paper) for out, paper in (("a", None), ("b", load_paper(tripled)))
    ]
    followed = 0
    for before, after in zip(*(report.tables for report in reports), strict=True):
        for old, new in zip(before.rows, after.rows, strict=True):
            for column, was, now in zip(before.columns, old, new, strict=True):
                if column.paper and isinstance(was, float) and was != now:
                    assert now == pytest.approx(3 * was), (before.slug, old)
                    followed += 1
                elif not column.name.endswith(("difference", "- paper")) and before.slug not in ("table-a1", "budgets"):
                    assert was == now, (before.slug, column.name)
    assert followed == 7 + 6 + 6 + 4 + 24 + 8 + 12  # tables 1, of noise, 2, 3, 4, A3 with its penalties, A4


def test_no_number_of_the_paper_is_written_in_code():
    """Numbers of four digits or more, which no code has by accident."""

    def numbers(value):
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
        return {value} if inner is None else set().union(*map(numbers, inner))

    published = {f"{n}" for n in numbers(tomllib.loads(PAPER_TOML.read_text())) if isinstance(n, float) and len(f"{n}".strip("-0.")) > 3}
    code = [path.read_text(encoding="utf-8") for path in Path(PAPER_TOML).parent.glob("*.[pj]*")]
    assert len(published) > 20 and len(code) > 15
    assert [number for number in sorted(published | {"0.1446", "0.1442"}) if any(number in text for text in code)] == []
