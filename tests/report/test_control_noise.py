"""Controls are compared with the plain runs of their cell, seed by seed, and with nothing else."""

import pytest
from test_noise import SPREAD, ends, number
from test_report import change, rows_of

SCALED = {"model": {"blocks": 3, "layers_per_block": 1, "initializer_range": 0.1}}


def rows(out):
    return {(row["control"].partition("=")[0], row["difference"]): row for row in rows_of(out, "controls")}


@pytest.fixture
def controlled(write_grid):
    """The paper's 2x2; all four cells from another start, where only post-grow differs; and a longer post-joint."""
    plain = ends()
    scaled = {cell: list(ces) for cell, ces in plain.items()}
    scaled["grow", "post"] = [ce + 0.05 + luck for ce, luck in zip(plain["grow", "post"], SPREAD, strict=True)]
    longer = [ce - 0.02 + luck for ce, luck in zip(plain["joint", "post"], SPREAD, strict=True)]
    runs = write_grid({("joint", "post"): longer}, at="longer", phase_blocks=[3, 3, 3], data="fresh")
    for folder in runs.values():
        change(folder, "result", lambda result: result.update(phases=[{**result["phases"][0], "index": index} for index in range(3)]))
    return [*write_grid(plain).values(), *write_grid(scaled, at="scaled", **SCALED).values(), *runs.values()]


def test_a_control_is_compared_with_its_plain_cell(controlled, tmp_path, undrawn, built):
    report, _ = built(controlled, tmp_path / "out")
    found = rows(tmp_path / "out")
    half = 4.3026527 * 0.002 / 3**0.5
    row = found["model.initializer_range", "control less plain, post-grow"]
    assert number(row, "mean", "95% from", "to") == pytest.approx([0.05, 0.05 - half, 0.05 + half])
    assert (row["sign"], row["seeds"]) == ("positive", "3") and number(row, "seed 42") == pytest.approx([0.048])
    row = found["model.initializer_range", "control less plain, pre-grow"]
    assert number(row, "mean") == pytest.approx([0], abs=1e-12) and row["sign"] == "no spread"
    assert number(found["model.initializer_range", "interaction"], "mean") == pytest.approx([0.05 - 0.0332])
    assert number(found["phase_blocks", "control less plain, post-joint"], "mean") == pytest.approx([-0.02])
    assert number(found["phase_blocks", "post-grow less control"], "mean", "seed 42") == pytest.approx([-0.0077, -0.0057])
    assert ("phase_blocks", "interaction") not in found and ("phase_blocks", "post - pre, joint") not in found
    assert report.table_1["interaction"] == pytest.approx(-0.0332)


def test_without_controls_there_is_no_such_table(four, tmp_path, undrawn, built):
    report, _ = built(four.values(), tmp_path / "out")
    assert "controls" not in {table.slug for table in report.tables}
