"""The picture on a terminal: drawn anew in place, or printed once where nothing can be drawn in place."""

import time
from collections.abc import Callable, Iterable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.watch.picture import Picture
from pipeline.watch.run_state import STATES, RunView, State
from pipeline.watch.words import LEGEND, PROGRESS, VALUES, Row, capture_line, notes, rows

COLOURS: dict[State, str] = {
    "running": "cyan",
    "died": "bold red",
    "failed": "bold red",
    "stopped": "yellow",
    "waiting": "dim",
    "done": "green",
}
"""Beside a mark and the word; NO_COLOR is heeded."""

WIDE = 132
"""Columns from which on a run has one line; below, the table is cut in two."""

ROOM = 12
"""Lines of a screen that are not rows: title, summary, cache, headers, legend, some notes."""


def show_live(look: Callable[[], Picture], every: float) -> None:
    """Draw every `every` seconds until all runs are done or Ctrl-C; the last picture stays on the terminal."""
    console = Console(highlight=False, markup=False)
    picture = look()
    try:
        with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
            while not picture.is_over:
                live.update(drawn(picture, console.width, console.height, live=True), refresh=True)
                time.sleep(every)
                picture = look()
    except KeyboardInterrupt:
        pass
    console.print(drawn(picture, console.width))


def show_once(picture: Picture, console: Console) -> None:
    """One picture: as on a terminal, or as aligned columns where it goes to a file or a pipe."""
    if console.is_terminal:
        console.print(drawn(picture, console.width))
        return
    for line in plain(picture):
        console.print(line, soft_wrap=True)


def plain(picture: Picture) -> list[str]:
    """Lines of text; the columns line up."""
    cells = [(*PROGRESS, *VALUES), *((*row.progress, *row.values) for row in rows(picture))]
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    table = [
        "  ".join(text.ljust(width) if place < 2 else text.rjust(width) for place, (text, width) in enumerate(zip(line, widths)))
        for line in cells
    ]
    capture = [capture_line(picture.capture)] if picture.capture else []
    return [_title(picture), picture.summary, *capture, *(line.rstrip() for line in table), *notes(picture)]


def drawn(picture: Picture, width: int, height: int | None = None, *, live: bool = False) -> RenderableType:
    """The picture for a terminal of `width` columns; of more runs than `height` has lines for, the ones that ask for attention."""
    shown = list(picture.runs) if height is None else most_urgent(picture.runs, max(1, (height - ROOM) // (1 if width >= WIDE else 2)))
    parts: list[RenderableType] = [Text(_title(picture), style="bold"), Text(picture.summary)]
    parts += [Text(capture_line(picture.capture))] if picture.capture else []
    parts += _tables(rows(picture, shown), wide=width >= WIDE)
    hidden = len(picture.runs) - len(shown)
    parts += [Text(f"{hidden} more runs; a higher window shows them", style="dim")] if hidden else []
    parts += [Text(f"! {note}", style="yellow") for note in notes(picture)]
    parts += [Text(LEGEND, style="dim"), Text("Ctrl-C ends the view; the runs go on", style="dim")] if live else []
    return Group(*parts)


def most_urgent(runs: Sequence[RunView], count: int) -> list[RunView]:
    """At most `count` runs in their order: running ones and those that ended badly before waiting and finished ones."""
    kept = sorted(range(len(runs)), key=lambda place: (STATES.index(runs[place].state), place))[:count]
    return [runs[place] for place in sorted(kept)]


def _title(picture: Picture) -> str:
    report = f"  report: {picture.report}" if picture.report else ""
    return f"{picture.name}  {time.strftime('%H:%M:%S', time.localtime(picture.at))}{report}"


def _tables(found: Sequence[Row], *, wide: bool) -> Iterable[RenderableType]:
    if wide:
        return [_table((*PROGRESS, *VALUES), [(row.state, (*row.progress, *row.values)) for row in found])]
    halves = _table(PROGRESS, [(row.state, row.progress) for row in found])
    return [halves, _table(("run", *VALUES), [(row.state, (row.progress[0], *row.values)) for row in found])]


def _table(header: Sequence[str], lines: Sequence[tuple[State, Sequence[str]]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        table.add_column(
            name, justify="left" if name in ("run", "state", "guard rails") else "right", overflow="fold", no_wrap=name != "guard rails"
        )
    for state, cells in lines:
        table.add_row(*(Text(text, style=COLOURS[state] if name == "state" or "NaN" in text else "") for name, text in zip(header, cells)))
    return table
