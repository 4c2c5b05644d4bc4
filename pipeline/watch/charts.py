"""A run's losses as a picture for the page, drawn again when there is something new and not more often than it pays."""

import io
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.report.drawing import GREY, RC, WIDTH, line_look
from pipeline.report.figures import trailing_mean
from pipeline.report.records import Point
from pipeline.watch.run_metrics import RunMetrics
from pipeline.watch.run_state import RunView

if TYPE_CHECKING:
    from matplotlib.axes import Axes

REDRAW_SECONDS = 10.0
"""A chart costs a good part of a second of a processor that may be training."""

SMOOTHED = 20
"""Points of the trailing mean over the thin line, of a short run a tenth of its points."""


@dataclass(frozen=True)
class Chart:
    """A picture that is to be shown: `version` is how many records it shows, 0 before the first; `alt` says what is to be seen."""

    version: int = 0
    alt: str = ""
    due: float = -math.inf


class Charts:
    """One SVG a run. Whoever calls sees to it that no other thread reads or draws at the same time."""

    def __init__(self) -> None:
        self._charts: dict[str, Chart] = {}
        self._drawn: dict[str, tuple[int, bytes]] = {}

    def newest(self, view: RunView, metrics: RunMetrics) -> Chart:
        """The picture to ask for now; another one once there are records that it lacks and it has been shown for a while."""
        chart = self._charts.get(view.run, Chart())
        if metrics.records != chart.version and time.monotonic() >= chart.due:
            chart = Chart(metrics.records, chart_words(view, metrics), time.monotonic() + REDRAW_SECONDS)
            self._charts[view.run] = chart
        return chart

    def svg(self, view: RunView, metrics: RunMetrics) -> bytes:
        """The picture of the newest version that was asked for."""
        wanted = self.newest(view, metrics).version
        if self._drawn.get(view.run, (-1, b""))[0] != wanted:
            self._drawn[view.run] = wanted, draw(view, metrics)
        return self._drawn[view.run][1]


def draw(view: RunView, metrics: RunMetrics) -> bytes:
    """Training loss above, validation CE below, over optimizer steps; dotted lines where a later phase begins."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(WIDTH, 4.4), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True)
        look = line_look(view.curriculum or "", view.norm or "")
        points = metrics.loss.points()
        above.plot(*_columns(points), color=look["color"], linewidth=0.7, alpha=0.45)
        above.plot(*_columns(trailing_mean(points, max(2, min(SMOOTHED, len(points) // 10)))), color=look["color"], linewidth=1.8)
        below.plot(*_columns(metrics.val_ce.points()), **look, linewidth=1.8, markersize=4)
        for axes, label, shown in ((above, "training loss", points), (below, "validation CE", metrics.val_ce.points())):
            _frame(axes, label, sorted(metrics.starts))
            if not shown:
                axes.text(0.5, 0.5, "no records yet", ha="center", va="center", transform=axes.transAxes, color=GREY)
        below.set_xlabel("optimizer steps over all phases")
        svg = io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None})
    return svg.getvalue()


def _columns(points: Sequence[Point]) -> tuple[list[int], list[float]]:
    return [step for step, _ in points], [value if math.isfinite(value) else math.nan for _, value in points]


def _frame(axes: "Axes", label: str, starts: Sequence[int]) -> None:
    from matplotlib.ticker import MaxNLocator, StrMethodFormatter

    axes.set_ylabel(label)
    axes.grid(axis="y", color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    for step in starts:
        axes.axvline(step, color=GREY, linewidth=1.1, linestyle=":", zorder=1)


def chart_words(view: RunView, metrics: RunMetrics) -> str:
    """What the picture shows, for those who do not see it."""
    told = [_ends("training loss", metrics.loss.points()), _ends("validation CE", metrics.val_ce.points())]
    starts = ", ".join(f"{step:,}" for step in sorted(metrics.starts))
    return f"Losses of {view.run} over optimizer steps: {', '.join(told)}{f'; later phases begin after steps {starts}' if starts else ''}."


def _ends(what: str, points: Sequence[Point]) -> str:
    values = [value for _, value in points if math.isfinite(value)]
    return f"{what} from {values[0]:.4f} to {values[-1]:.4f}" if values else f"no {what} yet"
