"""Build a report: run folders in; index.html, report.md, CSV tables, PNG and SVG figures out.

index.html is written last, so that a folder with a page has everything the page names.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.contract.atomic_io import atomic_path, write_text
from pipeline.contract.run_record import RunFolder
from pipeline.report import noise, tables
from pipeline.report.contrasts import Comparisons
from pipeline.report.control_noise import control_differences
from pipeline.report.control_tables import hyperparameters, joint_controls
from pipeline.report.controls import mark_controls
from pipeline.report.diagnostic_tables import block_removal, transitions
from pipeline.report.grid import Table, csv_text, markdown, without_differences
from pipeline.report.learning_rates import at_best, chosen_words
from pipeline.report.notes import mixed_inputs, problems
from pipeline.report.page import Contents, facts, render_page
from pipeline.report.paper import Paper, load_paper
from pipeline.report.records import Run, read_runs


@dataclass(frozen=True)
class Report:
    """Where the page is and what it says: `table_1` and `noise` have unrounded nats a target token, None where a run is missing."""

    page: Path
    table_1: dict[str, Any]
    noise: list[dict[str, Any]]
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    problems: tuple[tuple[str, str], ...]


def build_report(
    name: str, runs: Sequence[RunFolder], out: Path, *, caveat: str = "", about: str = "", paper: Paper | None = None
) -> Report:
    """Write the report of `runs` into `out`; runs that are unfinished or broken are said in it, never refused.

    `caveat` is a sentence that stands under every table; `paper` swaps the packaged numbers of the paper.

    Raises:
        PipelineError: when the disk is full.
    """
    from pipeline.report.figures import drawings

    read, paper = mark_controls(read_runs(runs)), paper or load_paper()
    shown = at_best(read)
    compared = noise.comparisons([run for run in read if not run.control], paper)
    contents = Contents(
        name=name,
        about=about,
        notes=[*mixed_inputs(read), *chosen_words(read)],
        problems=problems(read),
        tables=_tables(read, shown, paper, caveat, compared),
        drawings=drawings([run for run in shown if not run.control], paper, compared),
        runs=read,
    )
    page = _write(contents, out)
    return Report(
        page, tables.table_1(shown), noise.as_json(compared), tuple(contents.tables), tuple(contents.notes), tuple(contents.problems)
    )


def _tables(runs: Sequence[Run], shown: Sequence[Run], paper: Paper, caveat: str, compared: Comparisons) -> list[Table]:
    """In reading order; means are of the `shown` runs, those at each cell's best learning rate."""
    plain = [run for run in runs if not run.control]
    built = [
        tables.validation_ce(shown, paper, noise.verdict(plain)),
        noise.differences(compared),
        tables.single_block(shown, paper),
        noise.means(plain),
        joint_controls(shown, paper),
        control_differences(runs),
        block_removal(shown, paper),
        hyperparameters(runs, paper),
        tables.budgets(runs, paper),
        tables.freeze_table(shown, paper),
        transitions(shown, paper),
        tables.per_phase(runs),
        tables.run_summary(runs, paper),
    ]
    return [replace(table, notes=(caveat, *table.notes) if caveat else table.notes) for table in built if table]


def _write(contents: Contents, out: Path) -> Path:
    for table in contents.tables:
        write_text(out / f"{table.slug}.csv", csv_text(table))
    for drawing in contents.drawings:
        write_text(out / f"{drawing.slug}.svg", drawing.svg_file)
        with atomic_path(out / f"{drawing.slug}.png") as temporary:
            temporary.write_bytes(drawing.png)
    write_text(out / "report.md", _markdown(contents))
    page = out / "index.html"
    write_text(page, render_page(contents))
    return page


def _markdown(contents: Contents) -> str:
    parts = [f"# {contents.name}", contents.about, "\n".join(f"- {term}: {text}" for term, text in facts(contents.runs))]
    parts += [f"> {note}" for note in contents.notes]
    parts += [f"## {markdown(table)}" for table in contents.tables]
    parts += [f"## {drawing.title}\n\n![{drawing.alt}]({drawing.slug}.png)\n\n{drawing.caption}" for drawing in contents.drawings]
    said = "\n".join(f"- {run}: {text}" for run, text in contents.problems)
    parts.append(f"## Problems\n\n{said or 'None: every run is complete and finite.'}")
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def table_1_text(report: Report) -> str:
    """Table 1 with its notes as plain text for a terminal."""
    return markdown(without_differences(report.tables[0]))
