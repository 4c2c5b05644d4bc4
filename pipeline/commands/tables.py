"""A table of text: drawn by rich on a terminal, aligned by blanks where it goes to a file or a pipe and no width limits it."""

from collections.abc import Sequence

from rich.table import Table

from pipeline.commands.options import out


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print to stdout; the first column is text, the others are numbers."""
    if out.is_terminal:
        table = Table(header[0])
        for name in header[1:]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*row)
        out.print(table)
        return
    widths = [max(len(row[place]) for row in (header, *rows)) for place in range(len(header))]
    for row in (header, *rows):
        first, *numbers = (text.rjust(width) if place else text.ljust(width) for place, (text, width) in enumerate(zip(row, widths)))
        out.print("  ".join([first, *numbers]).rstrip())
