"""How figures look and what one is: colours, line styles, a drawing as SVG and PNG. The same runs give the same bytes.

Curriculum is the colour (Okabe and Ito's palette, told apart by colour-blind readers), placement the line style and the
marker, so that a grey print still tells four runs apart.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.report.records import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"joint": "#0072B2", "grow": "#D55E00", "freeze": "#007A5A"}
STYLES: dict[str, tuple[Any, str]] = {"pre": ("-", "o"), "post": ((0, (5, 2)), "s")}
GREY = "#5B6570"
WIDTH = 6.8
RC: dict[Any, Any] = {
    "svg.hashsalt": "pipeline-report",
    "svg.fonttype": "path",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "figure.facecolor": "white",
}


@dataclass(frozen=True)
class Drawing:
    """One figure: `svg` is the element for the page, `svg_file` and `png` lie beside it; `alt` says what is to be seen."""

    slug: str
    title: str
    caption: str
    alt: str
    svg: str
    svg_file: str
    png: bytes


def drawing(slug: str, title: str, caption: str, alt: str, figure: "Figure") -> Drawing:
    svg, png = io.StringIO(), io.BytesIO()
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # found once, not for each format
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Drawing(slug, title, caption.strip(), alt, inline_svg(svg.getvalue(), slug), svg.getvalue(), png.getvalue())


def inline_svg(svg: str, prefix: str) -> str:
    """The <svg> element alone, its ids made unique to the page (two figures share matplotlib's names)."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg).strip()


def cells_of(runs: Sequence[Run]) -> list[tuple[str, str, list[Run]]]:
    """(curriculum, placement, runs), always in the same order: seeds of one cell are drawn as one."""
    cells: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        cells.setdefault((run.curriculum, run.norm), []).append(run)
    order = [*COLOURS, *STYLES]
    places = {cell: [order.index(word) if word in order else len(order) for word in cell] for cell in cells}
    return [(*cell, cells[cell]) for cell in sorted(cells, key=lambda cell: places[cell])]


def spread_words(runs: Sequence[Run], shape: str) -> str:
    """What `shape` shows, where there are several seeds to show it for."""
    return f"Means over seeds; {shape} reach from the lowest seed to the highest. " if any(len(m) > 1 for *_, m in cells_of(runs)) else ""


def legend(axes: "Axes", runs: Sequence[Run]) -> None:
    """Above the plot, where it hides no line."""
    handles, columns = _entries(runs)
    if handles:
        axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=columns, handlelength=3.6, borderaxespad=0.2)


def figure_legend(figure: "Figure", runs: Sequence[Run], *, filled: bool = False) -> None:
    """Above all panels; `filled` shows bars instead of lines."""
    handles, columns = _entries(runs, filled)
    if handles:
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, handlelength=3.6)


def _entries(runs: Sequence[Run], filled: bool = False) -> tuple[list[Any], int]:
    """One entry for each curriculum and placement, whatever the number of seeds; and columns, one a curriculum."""
    pairs = [(curriculum, norm) for curriculum, norm, _ in cells_of(runs)]
    return [(_bar if filled else _line)(*pair) for pair in pairs], max(2, len({curriculum for curriculum, _ in pairs}))


def line_look(curriculum: str, norm: str) -> dict[str, Any]:
    """How a run's line is drawn."""
    style, marker = STYLES.get(norm, (":", "x"))
    colour = COLOURS.get(curriculum, GREY)
    return {"linestyle": style, "marker": marker, "color": colour, "markerfacecolor": colour if norm == "pre" else "white"}


def bar_look(curriculum: str, norm: str) -> dict[str, Any]:
    """How a run's bar is drawn."""
    colour = COLOURS.get(curriculum, GREY)
    hatched = norm != "pre"
    return {"facecolor": "white" if hatched else colour, "edgecolor": colour, "hatch": "////" if hatched else "", "linewidth": 0.8}


def _line(curriculum: str, norm: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linewidth=1.8, label=f"{norm}-norm, {curriculum}", **line_look(curriculum, norm))


def _bar(curriculum: str, norm: str) -> Any:
    from matplotlib.patches import Patch

    return Patch(label=f"{norm}-norm, {curriculum}", **bar_look(curriculum, norm))


def paper_look() -> dict[str, Any]:
    """How a value of the paper is drawn: a cross that is seen on any colour."""
    from matplotlib.patheffects import withStroke

    outlined = [withStroke(linewidth=3.2, foreground="white")]
    return {
        "linestyle": "",
        "marker": "x",
        "markersize": 6,
        "markeredgewidth": 1.4,
        "color": "black",
        "zorder": 5,
        "path_effects": outlined,
    }


def gap_words(runs: Sequence[Run]) -> str:
    """A run that is absent or cut short is named under the figure, not left for the reader to miss."""
    named = ", ".join(f"{run.label} ({run.problem_kind})" for run in runs if run.problem)
    return f"Not whole, drawn as far as their records go: {named}." if named else ""
