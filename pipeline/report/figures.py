"""The figures, drawn without a display; matplotlib is imported when the first one is drawn.

Curriculum is the colour (Okabe and Ito's palette, told apart by colour-blind readers), placement the line style and the
marker, so that a grey print still tells four runs apart. The same runs give the same bytes.
"""

import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.report.records import Point, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"joint": "#0072B2", "grow": "#D55E00", "freeze": "#007A5A"}
STYLES: dict[str, tuple[Any, str]] = {"pre": ("-", "o"), "post": ((0, (5, 2)), "s")}
GREY = "#5B6570"
WIDTH = 6.8
LONGEST_MEAN = 200
"""Steps of the trailing mean at the paper's length; shorter runs take a tenth of the longest."""

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
    """One figure: `svg` goes into the page, `png` beside it; `alt` says what is to be seen."""

    slug: str
    title: str
    caption: str
    alt: str
    svg: str
    png: bytes


def drawings(runs: Sequence[Run]) -> list[Drawing]:
    """Validation CE and training loss of every run, over optimizer steps."""
    import matplotlib

    with matplotlib.rc_context(RC):
        return [_validation(runs), _training(runs)]


def _validation(runs: Sequence[Run]) -> Drawing:
    figure, (axes,) = _figure(1, 4.2)
    for run in runs:
        _line(axes, run, run.curves.val_ce)
    _frame(axes, runs, "validation CE (nats per target token)")
    _legend(axes, runs)
    axes.set_xlabel("optimizer steps over all phases")
    caption = f"CE on the validation documents. Solid: pre-norm, dashed: post-norm. {_boundary_words(runs)}{_gap_words(runs)}"
    alt = f"Line chart of validation CE against optimizer steps. {_ends(runs)}"
    return _drawing("validation-ce", "Validation CE over training", caption, alt, figure)


def _training(runs: Sequence[Run]) -> Drawing:
    curricula = [name for name in COLOURS if any(run.curriculum == name for run in runs)] or ["joint"]
    window = _window(runs)
    figure, panels = _figure(len(curricula), 0.9 + 2.5 * len(curricula))
    for axes, curriculum in zip(panels, curricula, strict=True):
        members = [run for run in runs if run.curriculum == curriculum]
        for run in members:
            _line(axes, run, run.curves.train_loss, raw=True)
            _line(axes, run, trailing_mean(run.curves.train_loss, window))
        _frame(axes, members, f"{curriculum}: training loss")
        _legend(axes, members)
    panels[-1].set_xlabel("optimizer steps over all phases")
    caption = (
        f"The loss of each step (thin) and its trailing mean over {window:,} steps (thick). Solid: pre-norm, dashed: post-norm. "
        f"{_boundary_words(runs)}{_gap_words(runs)}"
    )
    alt = f"Line charts of the training loss against optimizer steps, one panel a curriculum: {', '.join(curricula)}."
    return _drawing("training-loss", "Training loss", caption, alt, figure)


def _figure(panels: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, sharex=True, sharey=True, squeeze=False)[:, 0])


def _line(axes: "Axes", run: Run, points: Sequence[Point], raw: bool = False) -> None:
    style, marker = STYLES.get(run.norm, (":", "x"))
    colour = COLOURS.get(run.curriculum, GREY)
    steps, values = [step for step, _ in points], [value for _, value in points]
    if raw:
        axes.plot(steps, values, linestyle=style, color=colour, linewidth=0.7, alpha=0.45)
        return
    every = max(1, len(points) // 12)
    face = colour if run.norm == "pre" else "white"
    axes.plot(
        steps, values, linestyle=style, marker=marker, markevery=every, markersize=5, markerfacecolor=face, color=colour, linewidth=1.8
    )


def _frame(axes: "Axes", runs: Sequence[Run], label: str) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_ylabel(label)
    axes.grid(axis="y", color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for step in _boundaries(runs):
        axes.axvline(step, color=GREY, linewidth=1.1, linestyle=":", zorder=1)
    if not any(run.curves.val_ce or run.curves.train_loss for run in runs):
        axes.text(0.5, 0.5, "no records", ha="center", va="center", transform=axes.transAxes, color=GREY)


def _legend(axes: "Axes", runs: Sequence[Run]) -> None:
    """One entry for each curriculum and placement, whatever the number of seeds; above the plot, where it hides no line."""
    from matplotlib.lines import Line2D

    order = [*COLOURS, *STYLES]
    pairs = {(run.curriculum, run.norm) for run in runs}
    handles = []
    for curriculum, norm in sorted(pairs, key=lambda pair: [order.index(word) if word in order else len(order) for word in pair]):
        style, marker = STYLES.get(norm, (":", "x"))
        colour = COLOURS.get(curriculum, GREY)
        face = colour if norm == "pre" else "white"
        entry = Line2D(
            [], [], linestyle=style, marker=marker, color=colour, markerfacecolor=face, linewidth=1.8, label=f"{norm}-norm, {curriculum}"
        )
        handles.append(entry)
    if handles:
        axes.legend(
            handles=handles,
            loc="lower left",
            bbox_to_anchor=(-0.01, 1.0),
            ncols=max(2, len({pair[0] for pair in pairs})),
            handlelength=3.6,
            borderaxespad=0.2,
        )


def _drawing(slug: str, title: str, caption: str, alt: str, figure: "Figure") -> Drawing:
    svg, png = io.StringIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    figure.savefig(png, format="png", dpi=160, metadata={"Software": None})
    return Drawing(slug, title, caption.strip(), alt, inline_svg(svg.getvalue(), slug), png.getvalue())


def inline_svg(svg: str, prefix: str) -> str:
    """The <svg> element alone, its ids made unique to the page (two figures share matplotlib's names)."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'\bid="', f'id="{prefix}-', svg)
    return re.sub(r'(href="#|url\(#)', rf"\g<1>{prefix}-", svg).strip()


def trailing_mean(points: Sequence[Point], window: int) -> list[Point]:
    """Mean over the last `window` finite values up to each point: it never looks ahead, so a jump is not blurred to the left."""
    means, kept = [], [point for point in points if math.isfinite(point[1])]
    total = 0.0
    for i, (step, value) in enumerate(kept):
        total += value - (kept[i - window][1] if i >= window else 0.0)
        means.append((step, total / min(i + 1, window)))
    return means


def _window(runs: Iterable[Run]) -> int:
    longest = max((len(run.curves.train_loss) for run in runs), default=0)
    return max(2, min(LONGEST_MEAN, longest // 10))


def _boundaries(runs: Iterable[Run]) -> list[int]:
    return sorted({step for run in runs for step in run.curves.boundaries})


def _boundary_words(runs: Iterable[Run]) -> str:
    steps = _boundaries(runs)
    return f"Dotted: a later phase begins, after {', '.join(f'{step:,}' for step in steps)} steps. " if steps else ""


def _gap_words(runs: Sequence[Run]) -> str:
    """A run that is absent or cut short is named under the figure, not left for the reader to miss."""
    named = ", ".join(f"{run.label} ({run.problem_kind})" for run in runs if run.problem)
    return f"Not whole, drawn as far as their records go: {named}." if named else ""


def _ends(runs: Sequence[Run]) -> str:
    said = []
    for run in runs:
        points = [value for _, value in run.curves.val_ce if math.isfinite(value)]
        said.append(f"{run.label} from {points[0]:.4f} to {points[-1]:.4f}" if points else f"{run.label} without records")
    return f"{'; '.join(said)}." if said else "No runs."
