"""One neutral table, from which Markdown, CSV and HTML all come: the twins cannot disagree.

A cell is a number, a text that stands where a number is missing, or None where nothing belongs.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

Cell = str | float | int | None
DIFFERENCE = ", difference"


@dataclass(frozen=True)
class Column:
    """`spec` formats numbers (empty: a column of text); `paper` marks what the paper published."""

    name: str
    spec: str = ""
    paper: bool = False

    def text(self, cell: Cell) -> str:
        if cell is None:
            return ""
        return cell if isinstance(cell, str) else format(cell, self.spec)

    def kind(self, cell: Cell) -> str:
        """CSS classes of a cell: `gap` is a text where a number would stand."""
        if not self.spec:
            return "text"
        return "gap" if isinstance(cell, str) else "number paper" if self.paper else "number"


@dataclass(frozen=True)
class Table:
    """`slug` names the CSV file; `notes` stand under the table, in every twin but the CSV."""

    slug: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()

    def texts(self) -> list[list[str]]:
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def html_rows(self) -> list[list[tuple[str, str]]]:
        """(CSS class, text) of every cell, numbers with a typographic minus."""
        return [[self._html_cell(column, cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def starts_group(self, row: int) -> bool:
        """Whether a line belongs above a row: rows with the same first cell stand together, in a table that has such rows."""
        first = [cells[0] for cells in self.rows]
        return row > 0 and first[row] != first[row - 1] and len(set(first)) < len(first)

    @staticmethod
    def _html_cell(column: Column, cell: Cell) -> tuple[str, str]:
        text = column.text(cell)
        return column.kind(cell), text if isinstance(cell, str) else text.replace("-", "\N{MINUS SIGN}")


SEEDS = Column("seeds", "d")


def paired_columns(name: str, spec: str) -> tuple[Column, Column, Column]:
    """Ours, the paper's, ours less the paper's."""
    signed = "+z" + spec.removeprefix("+").removeprefix("z")
    return Column(name, spec), Column(f"{name}, paper", spec, paper=True), Column(f"{name}{DIFFERENCE}", signed)


def beside(ours: Cell, theirs: float | None) -> tuple[Cell, Cell, Cell]:
    """The cells of `paired_columns`."""
    return ours, theirs, ours - theirs if isinstance(ours, int | float) and theirs is not None else None


def without_differences(table: Table) -> Table:
    """Narrow enough for a terminal."""
    kept = [i for i, column in enumerate(table.columns) if not column.name.endswith(DIFFERENCE)]
    return replace(table, columns=tuple(table.columns[i] for i in kept), rows=tuple(tuple(row[i] for i in kept) for row in table.rows))


def markdown(table: Table) -> str:
    """Title, an aligned pipe table, then the notes; readable in a terminal as it is."""
    body = [[text.replace("|", r"\|") for text in row] for row in table.texts()]
    header = [column.name for column in table.columns]
    widths = [max(3, *(len(row[i]) for row in [header, *body])) for i in range(len(header))]
    right = [bool(column.spec) for column in table.columns]
    rule = [("-" * (width - 1) + ":") if flush else "-" * width for width, flush in zip(widths, right, strict=True)]
    lines = [_line(row, widths, right) for row in [header, rule, *body]]
    return "\n".join([table.title, "", *lines, *(f"\n{note}" for note in table.notes)]) + "\n"


def _line(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    cells = [text.rjust(width) if flush else text.ljust(width) for text, width, flush in zip(row, widths, right, strict=True)]
    return f"| {' | '.join(cells)} |"


def csv_text(table: Table) -> str:
    """Header and rows; numbers unrounded, so that whoever reads the file rounds once."""
    out = io.StringIO()
    writer: Any = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in table.columns)
    writer.writerows(["" if cell is None else cell for cell in row] for row in table.rows)
    return out.getvalue()
