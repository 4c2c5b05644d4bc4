"""The tables of what was held equal: settings (A1), and post-joint given as many tokens as post-grow (3)."""

from collections.abc import Sequence
from dataclasses import replace

from pipeline.report.cells import difference, seed_mean
from pipeline.report.grid import Cell, Column, Table
from pipeline.report.notes import distinct, flatten, left_out
from pipeline.report.paper import Paper
from pipeline.report.records import Run


def joint_controls(runs: Sequence[Run], paper: Paper) -> Table:
    """Table 3: the ends of the phases of the longest post-joint runs, whose learning rate restarts on fresh documents."""
    members = [replace(run, control="") for run in runs if is_longer_joint(run)] or list(runs)
    longest = max((len(run.phases) for run in members if (run.curriculum, run.norm) == ("joint", "post")), default=0)
    members = [run for run in members if run.curriculum == "joint" and len(run.phases) == longest]
    rows: list[tuple[Cell, ...]] = []
    for index, published in enumerate(paper.joint_controls):
        cell = seed_mean(members, "joint", "post", phase=index) if index < max(1, longest) else None
        ours: Cell = cell.shown if cell else "no run of that length"
        rows.append(
            (published["matches"], ours, published["ce"], difference(cell.value if cell else None, published["ce"]), cell.n if cell else 0)
        )
    grow = seed_mean(runs, "grow", "post")
    rows.append(("post-grow", grow.shown, paper.table_1["grow"]["post"], difference(grow.value, paper.table_1["grow"]["post"]), grow.n))
    columns = (
        Column("post-joint, matched by"),
        Column("CE", ".4f"),
        Column("CE, paper", ".4f", paper=True),
        Column("difference", "+z.4f"),
        Column("seeds", "d"),
    )
    notes = (
        "Validation CE in nats per target token. One post-joint run of three phases on fresh documents gives all rows: its phases end "
        "where unique tokens, active-layer tokens and total tokens equal post-grow's.",
        *left_out([grow]),
    )
    return Table("table-3", "Table 3. Post-norm joint training with as many tokens", columns, tuple(rows), notes)


def is_longer_joint(run: Run) -> bool:
    """Whether a run trains all blocks in several phases, each on documents that none has seen."""
    return run.curriculum == "joint" and run.expected_phases > 1 and run.config.get("settings", {}).get("data") == "fresh"


def hyperparameters(runs: Sequence[Run], paper: Paper) -> Table:
    """Table A1: the settings that the paper names, as the runs had them."""
    flat = [dict(flatten(run.config.get("settings", {}))) for run in runs if run.config]
    rows: list[tuple[Cell, ...]] = []
    for name, published in paper.settings.items():
        ours = distinct([settings.get(name) for settings in flat])
        said = " or ".join(f"{value:g}" if isinstance(value, int | float) else str(value) for value in ours) or "not recorded"
        rows.append((name, said, f"{published:g}", "" if said == f"{published:g}" else "differs"))
    columns = (Column("setting"), Column("here"), Column("paper"), Column(""))
    return Table("table-a1", "Table A1. Settings", columns, tuple(rows), ("Several values: runs differ in it.",))
