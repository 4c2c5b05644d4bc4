"""The picture on a terminal: drawn anew in place, or printed once where nothing can be drawn in place."""

import time
from collections.abc import Callable, Sequence

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.watch.picture import Picture
from pipeline.watch.run_state import STATES, RunView, State
from pipeline.watch.words import HEADER, LEGEND, Row, capture_line, notes, rows

COLOURS: dict[State, str] = {
    "running": "cyan",
    "died": "bold red",
    "failed": "bold red",
    "stopped": "yellow",
    "waiting": "dim",
    "done": "green",
}
"""Beside a mark and the word; NO_COLOR is heeded."""

LEFT = ("run", "state", "guard rails")
GAP = 2
"""Blanks between columns."""

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
    cells = [HEADER, *(row.cells for row in rows(picture))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    table = [
        "  ".join(text.ljust(width) if name in LEFT else text.rjust(width) for name, text, width in zip(HEADER, line, widths))
        for line in cells
    ]
    capture = [capture_line(picture.capture)] if picture.capture else []
    return [_title(picture), picture.summary, *capture, *(line.rstrip() for line in table), *notes(picture)]


def drawn(picture: Picture, width: int, height: int | None = None, *, live: bool = False) -> RenderableType:
    """The picture for a terminal of `width` columns; of more runs than `height` has lines for, the ones that ask for attention."""
    parted = parts_of(rows(picture), width)
    shown = list(picture.runs) if height is None else most_urgent(picture.runs, max(1, (height - ROOM) // len(parted)))
    parts: list[RenderableType] = [Text(_title(picture), style="bold"), Text(picture.summary)]
    parts += [Text(capture_line(picture.capture))] if picture.capture else []
    parts += [_table(columns, rows(picture, shown)) for columns in parted]
    hidden = len(picture.runs) - len(shown)
    parts += [Text(f"{hidden} more runs; a higher window shows them", style="dim")] if hidden else []
    parts += [Text(f"! {note}", style="yellow") for note in notes(picture)]
    parts += [Text(LEGEND, style="dim"), Text("Ctrl-C ends the view; the runs go on", style="dim")] if live else []
    return Group(*parts)


def parts_of(found: Sequence[Row], width: int) -> list[list[int]]:
    """The columns that have room beside each other, a list a table; each begins with the run's name, which alone may be folded."""
    lines = [HEADER, *(row.cells for row in found)]
    first, *others = [max(map(len, column)) + GAP for column in zip(*lines, strict=True)]
    parts, room = [[0]], width - min(first, width // 2)
    left = room
    for place, wanted in enumerate(others, start=1):
        if wanted > left and len(parts[-1]) > 1:
            parts.append([0])
            left = room
        parts[-1].append(place)
        left -= wanted
    return parts


def most_urgent(runs: Sequence[RunView], count: int) -> list[RunView]:
    """At most `count` runs in their order: running ones and those that ended badly before waiting and finished ones."""
    kept = sorted(range(len(runs)), key=lambda place: (STATES.index(runs[place].state), place))[:count]
    return [runs[place] for place in sorted(kept)]


def _title(picture: Picture) -> str:
    report = f"  report: {picture.report}" if picture.report else ""
    return f"{picture.name}  {time.strftime('%H:%M:%S', time.localtime(picture.at))}{report}"


def _table(columns: Sequence[int], found: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for place in columns:
        table.add_column(HEADER[place], justify="left" if HEADER[place] in LEFT else "right", overflow="fold", no_wrap=place > 0)
    for row in found:
        table.add_row(*(Text(row.cells[place], style=COLOURS[row.state] if HEADER[place] == "state" else "") for place in columns))
    return table
