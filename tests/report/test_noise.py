"""Several seeds and learning rates in a report: what is averaged, which sign the data support, and never more."""

import json

import pytest
from test_report import change, rows_of

from pipeline.report.learning_rates import best_rate
from pipeline.report.paper import load_paper
from pipeline.report.records import read_runs

PAPER = load_paper()
SPREAD = (-0.002, 0.0, 0.002)
CELLS = [(curriculum, norm) for curriculum in ("joint", "grow") for norm in ("pre", "post")]


def ends(moved=(), **more):
    """The paper's CEs for three seeds: what a seed brings is the same in every cell, but for `moved` in post-grow."""
    published = {cell: PAPER.table_1[cell[0]][cell[1]] for cell in CELLS} | more
    grid = {cell: [ce + 10 * luck for luck in SPREAD] for cell, ce in published.items()}
    if moved:
        grid["grow", "post"] = [ce + by for ce, by in zip(grid["grow", "post"], moved, strict=True)]
    return grid


def noise(out):
    return {(row["learning rate"], row["difference"]): row for row in rows_of(out, "noise")}


def number(row, *names):
    return [float(row[name]) for name in names]


def test_a_sign_is_supported_where_the_interval_leaves_out_zero(write_grid, tmp_path, undrawn, built):
    report, page = built(write_grid(ends(SPREAD)).values(), tmp_path / "out")
    row = noise(tmp_path / "out")["not recorded", "interaction"]
    half = 4.3026527 * 0.002 / 3**0.5
    assert number(row, "mean", "paper") == [pytest.approx(PAPER.interaction), PAPER.interaction]
    assert number(row, "95% from", "to") == pytest.approx([PAPER.interaction - half, PAPER.interaction + half])
    assert number(row, "smallest effect") == [pytest.approx(5.6534892 * 0.002 / 3**0.5)] and row["sign"] == "negative"
    assert number(row, "seed 42", "seed 43", "seed 44") == pytest.approx([-0.0352, -0.0332, -0.0312]) and row["seeds"] == "3"
    assert "by seed -0.0352 (42), -0.0332 (43), -0.0312 (44)" in page
    said = "95% interval -0.0382 to -0.0282 over 3 paired seeds: the data support a negative sign."
    assert said in page and "resolved is 0.0065 (power 80% at alpha 5%, two-sided)" in page
    assert noise(tmp_path / "out")["not recorded", "post - pre, joint"]["sign"] == "no spread"  # luck of a seed is paired away
    assert report.table_1["interaction"] == pytest.approx(PAPER.interaction)
    told = json.loads(json.dumps(report.noise, allow_nan=False))[2]
    assert (told["difference"], told["sign"], told["by_seed"]["43"]) == ("interaction", "negative", pytest.approx(-0.0332))
    assert told["interval"] == pytest.approx([PAPER.interaction - half, PAPER.interaction + half])


def test_no_sign_is_supported_where_it_holds_zero(write_grid, tmp_path, undrawn, built):
    _, page = built(write_grid(ends([30 * by for by in SPREAD])).values(), tmp_path / "out")
    assert "the data support no sign." in page and "support a" not in page
    assert noise(tmp_path / "out")["not recorded", "interaction"]["sign"] == "not resolved"


def test_one_seed_is_said_to_be_one_seed(four, tmp_path, undrawn, built):
    _, page = built(four.values(), tmp_path / "out")
    for row in rows_of(tmp_path / "out", "noise"):
        assert (row["95% from"], row["to"], row["sign"], row["smallest effect"]) == ("one seed", "", "one seed", "one seed")
    assert "One seed a cell" in page and "the data support" not in page
    assert not (tmp_path / "out/means.csv").exists()


def test_means_have_their_spread(write_grid, tmp_path, undrawn, built):
    built(write_grid(ends()).values(), tmp_path / "out")
    row = next(row for row in rows_of(tmp_path / "out", "means") if row["cell"] == "pre-joint")
    half = 4.3026527 * 0.02 / 3**0.5
    assert number(row, "mean CE", "standard deviation", "lowest", "highest") == pytest.approx([2.7603, 0.02, 2.7403, 2.7803])
    assert number(row, "95% from", "to") == pytest.approx([2.7603 - half, 2.7603 + half]) and row["seeds"] == "3"


@pytest.fixture
def two_rates(write_grid):
    """At 0.001 the paper's values, at 0.003 pre-norm's all 0.1 better and post-grow's 0.2 worse: its sign turns."""
    low = ends(SPREAD)
    high = {cell: [ce + {"pre": -0.1, "post": 0.0}[cell[1]] + 0.2 * (cell == ("grow", "post")) for ce in low[cell]] for cell in low}
    return write_grid(low, learning_rate=0.001) | {(*key, 0.003): run for key, run in write_grid(high, learning_rate=0.003).items()}


def test_each_cell_is_shown_at_its_best_rate_and_every_rate_is_told(two_rates, tmp_path, undrawn, built):
    report, page = built(two_rates.values(), tmp_path / "out")
    table = noise(tmp_path / "out")
    means = {rate: float(table[rate, "interaction"]["mean"]) for rate in ("0.001", "0.003", "each cell's best")}
    assert means == {name: pytest.approx(PAPER.interaction + by) for name, by in zip(means, (0, 0.2, 0), strict=True)}
    assert float(table["each cell's best", "post - pre, grow"]["mean"]) == pytest.approx(-0.0328 + 0.1)
    assert report.table_1["joint"]["pre"] == pytest.approx(2.7603 - 0.1) and report.table_1["grow"]["post"] == pytest.approx(2.7330)
    assert "pre-joint 0.003, post-joint 0.001, pre-grow 0.003, post-grow 0.001" in page
    assert "0.001: -0.0332 (a negative sign); 0.003: +0.1668 (a positive sign)" in page and "The data support both signs" in page
    best = {(row["cell"], row["learning rate"]) for row in rows_of(tmp_path / "out", "means") if row[""] == "best"}
    assert best == {("pre-joint", "0.003"), ("post-joint", "0.001"), ("pre-grow", "0.003"), ("post-grow", "0.001")}
    assert {row["seeds"] for row in rows_of(tmp_path / "out", "table-1")[:2]} == {"3"} and "runs of seed" not in page


def test_a_rate_at_which_a_seed_failed_is_not_judged_by_the_others(two_rates, tmp_path, undrawn, built):
    change(two_rates["grow", "pre", 43, 0.003], "result", lambda result: result["phases"][-1].update(val_ce=float("nan")))
    _, page = built(two_rates.values(), tmp_path / "out")
    assert "pre-grow 0.001" in page and noise(tmp_path / "out")["0.003", "interaction"]["seeds"] == "2"
    assert "pre-grow-lr0.003-seed43 (not a number)" in page


def test_a_run_without_settings_is_missed_at_every_rate(two_rates, tmp_path, undrawn, built):
    (two_rates["grow", "pre", 43, 0.003].path / "config.json").unlink()
    report, _ = built(two_rates.values(), tmp_path / "out")
    (notes,) = (table.notes for table in report.tables if table.slug == "means")
    assert "demo (no settings)" in notes[-1]  # the name that its result has
    assert noise(tmp_path / "out")["0.001", "interaction"]["seeds"] == "3"


def test_the_best_rate_of_unfinished_runs_is_still_one(two_rates):
    runs = [run for run in read_runs(list(two_rates.values())) if (run.curriculum, run.norm) == ("joint", "pre")]
    assert best_rate(runs) == 0.003
    for key in two_rates:
        if key[:2] == ("joint", "pre"):
            (two_rates[key].path / "result.json").unlink()
    assert best_rate([run for run in read_runs(list(two_rates.values())) if (run.curriculum, run.norm) == ("joint", "pre")]) == 0.001


def test_a_seed_that_only_some_cells_hold_is_in_no_difference(write_grid, tmp_path, undrawn, built):
    runs = write_grid(ends(SPREAD))
    (runs["joint", "pre", 44].path / "result.json").unlink()
    report, page = built(runs.values(), tmp_path / "out")
    table = noise(tmp_path / "out")
    row = table["not recorded", "interaction"]
    assert number(row, "seed 42", "seed 43") == pytest.approx([-0.0352, -0.0332]) and (row["seed 44"], row["seeds"]) == ("", "2")
    assert table["not recorded", "post - pre, grow"]["seeds"] == "3"
    assert report.table_1["interaction"] == pytest.approx(-0.0342) and "pre 2, post 3" in page
    assert "2 to 3 seeds a cell" in page and "over the seeds that both hold" in page


def test_another_initial_scale_is_a_control(write_grid, write_run, tmp_path, undrawn, built):
    other = write_run(tmp_path / "arm", "post", "grow", 1.0, model={"blocks": 3, "layers_per_block": 1, "initializer_range": 0.1})
    report, page = built([*write_grid(ends()).values(), other], tmp_path / "out")
    assert report.table_1["grow"]["post"] == pytest.approx(2.7330) and "model.initializer_range=0.1" in page
