"""What the report makes of diagnostics: the paper's values give the paper's tables, and what is missing is said in its place."""

import json

import pytest
from test_report import change, rows_of

from pipeline.report.paper import load_paper

PAPER = load_paper()
WINDOWS = {"smoothing": 1, "auc_1k": 1, "auc_5k": 4}


def checkpoint(found, phase=2):
    return {"checkpoint": f"phase-{phase}", "phase": phase, "step": 40 * (phase + 1), "found": found}


def removal(norm, curriculum):
    published = PAPER.removal[f"{norm}_{curriculum}"]
    blocks = [
        {"block": b, "delta_ce": ce, "standard_error_documents": 0.125, "angular_distance": angle}
        for b, (ce, angle) in enumerate(zip(published["delta_ce"], published["angular"], strict=True))
    ]
    between = checkpoint({"blocks": []}) | {"checkpoint": "step-00000119"}
    return {"on": {"about": "2 x 2048 tokens"}, "checkpoints": [between, checkpoint({"blocks": blocks}, 0 if curriculum == "joint" else 2)]}


def transition(norm):
    side = ("pre", "post").index(norm)
    found = []
    for place in ("at_50k", "at_100k"):
        loss = {key: values[place][side] for key, values in PAPER.transition.items()}
        loss["recovery_steps"] *= 40 / 50_000  # the same share of this run's phases
        found.append({"loss": loss, "probe": {"append_jump": 0.5, "restart_rise": 0.25}})
    return {"found": {"windows": WINDOWS, "transitions": found}}


def boundary(rms, phase):
    shape = {"edges": [1.0, 2.0, 40.0], "counts": [5, 1]}
    by_type = {"document_boundary": {"mean": 20 * rms}, "regular": {"mean": rms}}
    return checkpoint(
        [{"boundary": f"block_{b}", "mean": rms, "std": rms / 2, "histogram": shape, "by_type": by_type} for b in range(phase + 1)], phase
    )


@pytest.fixture
def diagnosed(four):
    for (curriculum, norm), folder in four.items():
        folder.write("diagnostics/removal", removal(norm, curriculum))
        scales = {"checkpoints": [boundary(7.0 + phase, phase) for phase in range(3)]}
        folder.write("diagnostics/boundary", scales)
        folder.write("diagnostics/token_types", scales)
        if curriculum == "grow":
            folder.write("diagnostics/transition", transition(norm))
    return four


def table_4(out):
    return {(row["run"], row["measure"]): row for row in rows_of(out, "table-4")}


def test_the_papers_diagnostics_give_the_papers_tables(diagnosed, tmp_path, undrawn, built):
    built(diagnosed.values(), tmp_path / "out")
    differences = [
        float(text)
        for slug in ("table-4", "table-a4")
        for row in rows_of(tmp_path / "out", slug)
        for name, text in row.items()
        if name.endswith("difference") and text
    ]
    assert len(differences) == 24 + 16 and max(map(abs, differences)) < 1e-9
    row = table_4(tmp_path / "out")["pre-grow", "CE rise"]
    assert [float(row[f"block {b}"]) for b in range(3)] == [8.13, 2.36, 0.02] and row["seeds"] == "1"
    assert float(table_4(tmp_path / "out")["post-joint", "its standard error"]["block 1"]) == 0.125
    slices = [row for row in rows_of(tmp_path / "out", "table-a4") if row["measure"].startswith("append jump")]
    assert [row["post"] for row in slices] == ["0.5", "0.5"] and not any(row["post, paper"] for row in slices)
    text = (tmp_path / "out/report.md").read_text()
    assert "Diagnostic batch: 2 x 2048 tokens." in text and "are 1, 1 and 4 steps here" in text


def test_a_perturbed_diagnostic_moves_its_own_cell_only(diagnosed, tmp_path, undrawn, built):
    built(diagnosed.values(), tmp_path / "a")
    change(diagnosed["grow", "post"], "diagnostics/removal", lambda r: r["checkpoints"][-1]["found"]["blocks"][2].update(delta_ce=2.48))
    change(diagnosed["grow", "pre"], "diagnostics/transition", lambda r: r["found"]["transitions"][1]["loss"].update(jump=0.033))
    built(diagnosed.values(), tmp_path / "b")
    moved = {
        (slug, place, name): float(after[name]) - float(before[name])
        for slug in ("table-1", "table-4", "table-a4")
        for place, (before, after) in enumerate(zip(rows_of(tmp_path / "a", slug), rows_of(tmp_path / "b", slug), strict=True))
        for name in before
        if before[name] != after[name]
    }
    assert moved == {
        ("table-4", 3, "block 2"): pytest.approx(0.1),
        ("table-4", 3, "block 2, difference"): pytest.approx(0.1),
        ("table-a4", 6, "pre"): pytest.approx(0.01),
        ("table-a4", 6, "pre, difference"): pytest.approx(0.01),
    }


def test_two_seeds_are_averaged_and_counted(diagnosed, tmp_path, undrawn, built, write_run):
    other = write_run(tmp_path / "more", "pre", "grow", 3.0, seed=43)
    shifted = removal("pre", "grow")
    for block in shifted["checkpoints"][-1]["found"]["blocks"]:
        block["delta_ce"] += 0.5
    other.write("diagnostics/removal", shifted)
    built([*diagnosed.values(), other], tmp_path / "out")
    row = table_4(tmp_path / "out")["pre-grow", "CE rise"]
    assert float(row["block 0"]) == pytest.approx(8.13 + 0.25) and row["seeds"] == "2"
    assert rows_of(tmp_path / "out", "table-a4")[0]["pre"] == "not diagnosed"  # the other seed has no such record


def test_a_reason_stands_where_its_number_would(diagnosed, tmp_path, built):
    change(diagnosed["grow", "post"], "diagnostics/removal", lambda r: r["checkpoints"][-1].update(found="phase-2 is not there"))
    change(
        diagnosed["grow", "pre"], "diagnostics/removal", lambda r: r["checkpoints"][-1]["found"]["blocks"][1].update(delta_ce="not finite")
    )
    change(diagnosed["grow", "pre"], "diagnostics/transition", lambda r: r["found"].update(transitions="no transition on record"))
    (diagnosed["joint", "pre"].path / "diagnostics/boundary.json").unlink()
    (diagnosed["grow", "post"].path / "diagnostics/token_types.json").write_text("{")
    (diagnosed["joint", "post"].path / "result.json").unlink()
    _, page = built(diagnosed.values(), tmp_path / "out")
    table = table_4(tmp_path / "out")
    assert table["post-grow", "CE rise"]["block 0"] == "phase-2 is not there" and table["post-grow", "CE rise"]["seeds"] == "0"
    assert table["pre-grow", "CE rise"]["block 1"] == "not finite" and float(table["pre-grow", "CE rise"]["block 0"]) == 8.13
    assert table["post-joint", "angle / pi"]["block 0"] == "unfinished"
    assert rows_of(tmp_path / "out", "table-a4")[0]["pre"] == "no transition"
    for said in (
        "Not drawn: pre-joint-seed42 (not diagnosed)",
        "Not drawn: post-grow-seed42 (not diagnosed)",
        "pre-grow-seed42 (not finite)",
    ):
        assert said in page


def test_runs_without_diagnostics_say_so_in_every_table_and_figure(four, tmp_path, built):
    _, page = built(four.values(), tmp_path / "out")
    assert {row["block 0"] for row in rows_of(tmp_path / "out", "table-4")} == {"not diagnosed"}
    assert {row["post"] for row in rows_of(tmp_path / "out", "table-a4")} == {"not diagnosed"}
    assert page.count("Not drawn: ") == 4
    assert "There is no such run here." not in page


def test_post_joint_controls_are_the_ends_of_one_longer_run(four, tmp_path, undrawn, built):
    published = [control["ce"] for control in PAPER.joint_controls]

    def lengthen(result):
        result["phases"] = [result["phases"][0] | {"index": index, "val_ce": ce} for index, ce in enumerate(published)]

    built(four.values(), tmp_path / "short")
    assert [row["CE"] for row in rows_of(tmp_path / "short", "table-3")][1:3] == ["no run of that length"] * 2
    change(four["joint", "post"], "result", lengthen)
    built(four.values(), tmp_path / "long")
    rows = rows_of(tmp_path / "long", "table-3")
    assert [float(row["CE"]) for row in rows] == [*published, PAPER.table_1["grow"]["post"]]
    assert all(float(row["difference"]) == 0 for row in rows)


def test_settings_stand_beside_the_papers(four, tmp_path, undrawn, built):
    change(four["joint", "pre"], "config", lambda config: config["settings"].update(steps=50_000, learning_rate=1e-4))
    built(four.values(), tmp_path / "out")
    rows = {row["setting"]: row for row in rows_of(tmp_path / "out", "table-a1")}
    assert (rows["steps"]["here"], rows["steps"]["paper"], rows["steps"][""]) == ("50000 or 40", "50000", "differs")
    assert (rows["learning_rate"]["here"], rows["learning_rate"][""]) == ("0.0001", "")
    assert rows["adam_beta2"]["here"] == "not recorded" and rows["warmup_ratio"]["paper"] == "0.015"


def test_the_paper_columns_come_from_the_data_file(diagnosed, tmp_path, undrawn):
    from pipeline.report.build import build_report

    swapped = PAPER.__class__(**{**PAPER.__dict__, "removal": json.loads(json.dumps(PAPER.removal).replace("8.32", "9.99"))})
    build_report("a", list(diagnosed.values()), tmp_path / "a", paper=swapped)
    row = table_4(tmp_path / "a")["post-grow", "CE rise"]
    assert (float(row["block 0, paper"]), float(row["block 0"])) == (9.99, 8.32)
