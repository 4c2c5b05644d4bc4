"""The report: derived numbers, twins that agree, and nothing missing without a word."""

import csv
import json
import math
import re
from pathlib import Path

import pytest

from pipeline.report.build import build_report, table_1_text
from pipeline.report.paper import load_paper
from pipeline.report.records import read_runs
from pipeline.report.tables import table_1

PAPER_TOML = Path(__file__).parents[2] / "pipeline/report/paper.toml"


def change(folder, record, edit):
    value = folder.read(record)
    edit(value)
    folder.write(record, value)


def rows_of(out, slug):
    with (out / f"{slug}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_papers_runs_give_the_papers_differences(four):
    ours, paper = table_1(read_runs(list(four.values()))), load_paper()
    for curriculum in ("joint", "grow"):
        assert round(ours[curriculum]["delta"], 4) == paper.table_1[curriculum]["delta"]
    assert round(ours["interaction"], 4) == paper.interaction


def test_a_perturbed_record_moves_what_follows_from_it_and_nothing_else(four):
    before = table_1(read_runs(list(four.values())))
    change(four["grow", "post"], "result", lambda result: result["phases"][-1].update(val_ce=result["phases"][-1]["val_ce"] + 0.01))
    after = table_1(read_runs(list(four.values())))
    assert after["joint"] == before["joint"]
    assert after["grow"]["delta"] - before["grow"]["delta"] == pytest.approx(0.01)
    assert after["interaction"] - before["interaction"] == pytest.approx(0.01)


def test_paper_columns_follow_the_data_file_and_ours_do_not(four, tmp_path, undrawn):
    swapped = tmp_path / "swapped.toml"
    swapped.write_text(re.sub(r"2\.7603", "9.8765", PAPER_TOML.read_text()))
    build_report("a", list(four.values()), tmp_path / "a")
    build_report("b", list(four.values()), tmp_path / "b", paper=load_paper(swapped))
    before, after = (rows_of(tmp_path / out, "table-1")[0] for out in "ab")
    assert (before.pop("pre, paper"), after.pop("pre, paper")) == ("2.7603", "9.8765")
    assert (float(before.pop("pre, difference")), float(after.pop("pre, difference"))) == (0, pytest.approx(2.7603 - 9.8765))
    assert before == after


def test_single_block_reads_phase_0_of_grow_runs(four, tmp_path, undrawn, built):
    built(four.values(), tmp_path / "out")
    pre, post = rows_of(tmp_path / "out", "table-2")
    published = load_paper()
    assert float(pre["CE"]) == pytest.approx(published.table_1["grow"]["pre"] + 0.4)
    assert float(post["PPL"]) == pytest.approx(math.exp(published.table_1["grow"]["post"] + 0.4))
    assert float(pre["KD loss, paper"]) == published.single_block["pre"]["kd"]


def test_budgets_are_the_records(four, tmp_path, undrawn, built):
    built(four.values(), tmp_path / "out")
    grow = next(row for row in rows_of(tmp_path / "out", "budgets") if row["run"] == "pre-grow-seed42")
    assert (grow["phases"], grow["active layers"]) == ("3", "1, 2, 3")
    assert [int(grow[f"{what} tokens"]) for what in ("total", "unique", "active-layer")] == [37_035, 12_345, 74_070]


def test_one_seed_and_the_caveat_stand_under_table_1(four, tmp_path, undrawn, built):
    report, page = built(four.values(), tmp_path / "out", caveat="Eight steps <only>.", about="A demo & more")
    sentence = "One seed a cell, 12,345 target tokens a joint run: this says nothing about placement."
    text = table_1_text(report)
    assert sentence in text and "Eight steps <only>." in text and "-0.0332" in text
    assert sentence in page and "Eight steps &lt;only&gt;." in page and "A demo &amp; more" in page
    assert sentence in (tmp_path / "out/report.md").read_text()


def test_two_seeds_are_averaged_and_said(four, tmp_path, undrawn, built, write_run):
    published = load_paper().table_1
    more = [write_run(tmp_path / "more", n, c, published[c][n] + 0.02, seed=43) for c, n in four]
    report, page = built([*four.values(), *more], tmp_path / "out")
    assert report.table_1["joint"]["pre"] == pytest.approx(published["joint"]["pre"] + 0.01)
    assert report.table_1["interaction"] == pytest.approx(load_paper().interaction)
    assert "2 seeds a cell" in page and "Several seeds (42, 43)" in page and "by seed -0.0332 (42), -0.0332 (43)" in page
    assert "says nothing about placement" not in page


def test_one_seed_a_cell_but_not_the_same_is_said(four, tmp_path, undrawn, built):
    change(four["grow", "post"], "config", lambda config: config["settings"].update(seed=43))
    _, page = built(four.values(), tmp_path / "out")
    assert "One seed a cell" in page and "do not hold the same seeds" in page


def test_unequal_seeds_are_said(four, tmp_path, undrawn, built, write_run):
    report, page = built([*four.values(), write_run(tmp_path / "more", "pre", "joint", 2.0, seed=43)], tmp_path / "out")
    assert "1 to 2 seeds a cell" in page and "do not hold the same seeds" in page
    assert "pre 2, post 1" in table_1_text(report)


def test_two_runs_of_one_seed_are_no_mean(four, tmp_path, undrawn, built, write_run):
    report, page = built([*four.values(), write_run(tmp_path / "more", "pre", "joint", 2.0, warmup_ratio=0.5)], tmp_path / "out")
    assert report.table_1["joint"]["pre"] is None and report.table_1["interaction"] is None
    assert "2 runs of seed 42" in page and "warmup_ratio = 0.5 or not set" in page


def break_unfinished(folder):
    (folder.path / "result.json").unlink()


def break_nan(folder):
    change(folder, "result", lambda result: result["phases"][-1].update(val_ce=math.nan, val_ppl=math.nan))


def break_null(folder):
    change(folder, "result", lambda result: result["phases"][1].update(val_kl=None))


def break_phase(folder):
    change(folder, "result", lambda result: result["phases"].pop(1))


def break_json(folder):
    (folder.path / "result.json").write_text("{")


def break_config(folder):
    (folder.path / "config.json").unlink()


BROKEN = [
    (break_unfinished, "unfinished", "no result.json, the last record is of step 120"),
    (break_nan, "not a number", "val_ce of phase 2, val_ppl of phase 2"),
    (break_null, "not a number", "val_kl of phase 1"),
    (break_phase, "phase missing", "result.json lacks phase 1 of 0 to 2"),
    (break_json, "unreadable", "result.json is not JSON"),
    (break_config, "no settings", "config.json is missing"),
]


@pytest.mark.parametrize(("damage", "kind", "detail"), BROKEN, ids=[damage.__name__ for damage, _, _ in BROKEN])
def test_a_broken_run_is_said_where_its_number_would_stand(four, tmp_path, undrawn, damage, kind, detail, built):
    damage(four["grow", "post"])
    report, page = built(four.values(), tmp_path / "out")
    assert report.table_1["grow"] == {"pre": load_paper().table_1["grow"]["pre"], "post": None, "delta": None}
    assert report.table_1["interaction"] is None
    json.dumps(report.table_1, allow_nan=False)
    row = rows_of(tmp_path / "out", "table-1")[1]
    assert (row["post"], row["post - pre"], row["seeds"]) == (kind, "needs both", "pre 1, post 0")
    assert detail in page and "Some runs are not whole" in page and detail in (tmp_path / "out/report.md").read_text()
    assert rows_of(tmp_path / "out", "table-2")[1]["CE"] == kind
    assert any(kind in row.values() for row in rows_of(tmp_path / "out", "phases") + rows_of(tmp_path / "out", "runs"))


def test_figures_name_the_runs_that_are_not_whole(four, tmp_path, built):
    for folder, (damage, _, _) in zip(four.values(), [BROKEN[0], BROKEN[1], BROKEN[3], BROKEN[5]], strict=True):
        damage(folder)
    _, page = built(four.values(), tmp_path / "out")
    said = "pre-joint-seed42 (unfinished), post-joint-seed42 (not a number), pre-grow-seed42 (phase missing)"
    assert page.count(f"Not whole, drawn as far as their records go: {said}") == 3


def test_a_run_that_is_not_there_is_said(four, tmp_path, undrawn, built):
    report, _ = built([four["joint", "pre"]], tmp_path / "out")
    assert [row["post"] for row in rows_of(tmp_path / "out", "table-1")[:2]] == ["no run", "no run"]
    assert report.table_1["joint"] == {"pre": load_paper().table_1["joint"]["pre"], "post": None, "delta": None}


def test_no_runs_at_all_still_make_a_page(tmp_path, built):
    report, page = built([], tmp_path / "out")
    assert "no run" in page and report.table_1["interaction"] is None


def test_mixed_inputs_are_said(four, tmp_path, undrawn, built, write_run):
    other = write_run(tmp_path / "runs", "pre", "freeze", 3.0, shard="other", fingerprint="cd34")
    _, page = built([*four.values(), other], tmp_path / "out")
    assert "Different shards (installed-docs, other)" in page and "Different cache fingerprints (ab12, cd34)" in page


def test_freeze_runs_fill_table_a3(four, tmp_path, undrawn, built, write_run):
    built(four.values(), tmp_path / "out")
    _, empty, penalty = rows_of(tmp_path / "out", "table-a3")
    assert (empty["pre"], empty["pre, paper"], penalty["pre"]) == ("no run", "2.9104", "needs both")
    freeze = [write_run(tmp_path / "runs", norm, "freeze", 3.0) for norm in ("pre", "post")]
    built([*four.values(), *freeze], tmp_path / "out")
    assert float(rows_of(tmp_path / "out", "table-a3")[2]["pre"]) == pytest.approx(3.0 - load_paper().table_1["grow"]["pre"])


def test_steps_without_a_finite_loss_and_torn_lines_are_remarks(four, tmp_path, undrawn, built):
    four["joint", "pre"].append_metrics({"kind": "train", "step": 41, "phase": 0, "phase_step": 41, "train/loss": math.nan})
    with four["joint", "post"].metrics_path.open("a") as lines:
        lines.write("not json\n")
    report, page = built(four.values(), tmp_path / "out")
    assert report.table_1["joint"]["pre"] == load_paper().table_1["joint"]["pre"]
    assert "1 training steps without a finite value" in page and "a line that is no record" in page
