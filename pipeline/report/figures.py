"""Losses over training, drawn without a display; matplotlib is imported when the first figure is drawn."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pipeline.report.drawing import COLOURS, GREY, RC, WIDTH, Drawing, drawing, gap_words, legend, line_look
from pipeline.report.paper import Paper
from pipeline.report.records import Point, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_MEAN = 200
"""Steps of the trailing mean at the paper's length; shorter runs take a tenth of the longest."""


def drawings(runs: Sequence[Run], paper: Paper) -> list[Drawing]:
    """All figures, in the paper's order; the training loss stands after the validation loss."""
    import matplotlib

    from pipeline.report.diagnostic_figures import boundary_scale, interaction, removal_bars, rms_distribution, token_type_scale

    inside = (boundary_scale, token_type_scale, rms_distribution, removal_bars)
    with matplotlib.rc_context(RC):
        return [interaction(runs, paper), _validation(runs), _training(runs), *(figure(runs, paper) for figure in inside)]


def _validation(runs: Sequence[Run]) -> Drawing:
    figure, (axes,) = _figure(1, 4.2)
    for run in runs:
        _line(axes, run, run.curves.val_ce)
    _frame(axes, runs, "validation CE (nats per target token)")
    legend(axes, runs)
    axes.set_xlabel("optimizer steps over all phases")
    caption = f"CE on the validation documents. Solid: pre-norm, dashed: post-norm. {_boundary_words(runs)}{gap_words(runs)}"
    alt = f"Line chart of validation CE against optimizer steps. {_ends(runs)}"
    return drawing("validation-ce", "Figures 3b and 5b. Validation CE over training", caption, alt, figure)


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
        legend(axes, members)
    panels[-1].set_xlabel("optimizer steps over all phases")
    caption = (
        f"The loss of each step (thin) and its trailing mean over {window:,} steps (thick). Solid: pre-norm, dashed: post-norm. "
        f"{_boundary_words(runs)}{gap_words(runs)}"
    )
    alt = f"Line charts of the training loss against optimizer steps, one panel a curriculum: {', '.join(curricula)}."
    return drawing("training-loss", "Training loss", caption, alt, figure)


def _figure(panels: int, height: float) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, sharex=True, sharey=True, squeeze=False)[:, 0])


def _line(axes: "Axes", run: Run, points: Sequence[Point], raw: bool = False) -> None:
    look = line_look(run.curriculum, run.norm)
    steps, values = [step for step, _ in points], [value for _, value in points]
    if raw:
        axes.plot(steps, values, linestyle=look["linestyle"], color=look["color"], linewidth=0.7, alpha=0.45)
        return
    every = max(1, len(points) // 12)
    axes.plot(steps, values, markevery=every, markersize=5, linewidth=1.8, **look)


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


def _ends(runs: Sequence[Run]) -> str:
    said = []
    for run in runs:
        points = [value for _, value in run.curves.val_ce if math.isfinite(value)]
        said.append(f"{run.label} from {points[0]:.4f} to {points[-1]:.4f}" if points else f"{run.label} without records")
    return f"{'; '.join(said)}." if said else "No runs."
