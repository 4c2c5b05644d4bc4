"""Losses over training, drawn without a display; matplotlib is imported when the first figure is drawn."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import TYPE_CHECKING

from pipeline.report.contrasts import Comparisons
from pipeline.report.drawing import COLOURS, GREY, RC, WIDTH, Drawing, cells_of, drawing, gap_words, legend, line_look, spread_words
from pipeline.report.paper import Paper
from pipeline.report.records import Point, Run, finite
from pipeline.report.samples import different_inputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LONGEST_MEAN = 200
"""Steps of the trailing mean at the paper's length; shorter runs take a tenth of the longest."""


def drawings(runs: Sequence[Run], paper: Paper, comparisons: Comparisons) -> list[Drawing]:
    """All figures, in the paper's order; the training loss stands after the validation loss. Runs on different data are said in each."""
    import matplotlib

    from pipeline.report.diagnostic_figures import boundary_scale, interaction, removal_bars, rms_distribution, token_type_scale
    from pipeline.report.noise_figure import noise_figure

    inside = (boundary_scale, token_type_scale, rms_distribution, removal_bars)
    with matplotlib.rc_context(RC):
        first = [interaction(runs, paper), noise_figure(comparisons), _validation(runs), _training(runs)]
        drawn = [*first, *(figure(runs, paper) for figure in inside)]
    different = different_inputs([run.inputs for run in runs])
    said = f" The runs have different {different}: their values do not compare." if different else ""
    return [replace(each, caption=each.caption + said) for each in drawn]


def _validation(runs: Sequence[Run]) -> Drawing:
    figure, (whole, ends) = _figure(2, 6.4, sharey=False)
    for axes in (whole, ends):
        for members in _together(runs):
            _line(axes, members, [run.curves.val_ce for run in members])
        _frame(axes, runs, "validation CE")
    legend(whole, runs)
    _cut_to_ends(ends, runs)
    ends.set_xlabel("optimizer steps over all phases")
    words = f"{spread_words(runs, 'bands')}{_boundary_words(runs)}{gap_words(runs)}"
    caption = (
        "CE on the validation documents, in nats per target token; below, the same cut to where the phases end. "
        f"Solid: pre-norm, dashed: post-norm. {words}"
    )
    alt = f"Line charts of validation CE against optimizer steps, whole and cut to where the phases end. {_ends(runs)}"
    return drawing("validation-ce", "Figures 3b and 5b. Validation CE over training", caption, alt, figure)


def _cut_to_ends(axes: "Axes", runs: Sequence[Run]) -> None:
    """From the lowest to the highest CE at which a phase ends, with a margin."""
    found = [value for run in runs for phase in run.phases if (value := finite(phase.values["ce"])) is not None]
    if found:
        margin = 0.1 * (max(found) - min(found)) or 0.1
        axes.set_ylim(min(found) - margin, max(found) + margin)


def _training(runs: Sequence[Run]) -> Drawing:
    curricula = [name for name in COLOURS if any(run.curriculum == name for run in runs)] or ["joint"]
    window = _window(runs)
    figure, panels = _figure(len(curricula), 0.9 + 2.5 * len(curricula))
    for axes, curriculum in zip(panels, curricula, strict=True):
        shown = [run for run in runs if run.curriculum == curriculum]
        for members in _together(shown):
            if len(members) == 1:
                _raw(axes, members[0])
            _line(axes, members, [trailing_mean(run.curves.train_loss, window) for run in members])
        _frame(axes, shown, f"{curriculum}: training loss")
        legend(axes, shown)
    panels[-1].set_xlabel("optimizer steps over all phases")
    thin = (
        "The loss of each step (thin, where a cell is one run) and its"
        if spread_words(runs, "")
        else "The loss of each step (thin) and its"
    )
    caption = (
        f"{thin} trailing mean over {window:,} steps (thick). Solid: pre-norm, dashed: post-norm. "
        f"{spread_words(runs, 'bands')}{_boundary_words(runs)}{gap_words(runs)}"
    )
    alt = f"Line charts of the training loss against optimizer steps, one panel a curriculum: {', '.join(curricula)}."
    return drawing("training-loss", "Training loss", caption, alt, figure)


def _together(runs: Sequence[Run]) -> list[list[Run]]:
    """Whole runs of one cell are one line; one that is not whole is a line of its own, as long as its records."""
    whole = [members for *_, members in cells_of([run for run in runs if not run.problem])]
    return whole + [[run] for run in runs if run.problem]


def _figure(panels: int, height: float, sharey: bool = True) -> "tuple[Figure, list[Axes]]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(panels, 1, sharex=True, sharey=sharey, squeeze=False)[:, 0])


def _line(axes: "Axes", members: Sequence[Run], curves: Sequence[Sequence[Point]]) -> None:
    """Mean over the curves at the steps that all have, and a band from the lowest to the highest."""
    look = line_look(members[0].curriculum, members[0].norm)
    steps, values = seed_band(curves)
    every = max(1, len(steps) // 12)
    axes.plot(steps, [fmean(each) for each in values], markevery=every, markersize=5, linewidth=1.8, **look)
    if len(curves) > 1:
        low, high = [min(each) for each in values], [max(each) for each in values]
        axes.fill_between(steps, low, high, color=look["color"], alpha=0.18, linewidth=0)


def seed_band(curves: Sequence[Sequence[Point]]) -> tuple[list[int], list[list[float]]]:
    """The steps that all curves have, rising, and the values of all there."""
    at = [dict(curve) for curve in curves]
    steps = sorted(set.intersection(*map(set, at)))
    return steps, [[each[step] for each in at] for step in steps]


def _raw(axes: "Axes", run: Run) -> None:
    look = line_look(run.curriculum, run.norm)
    steps, values = [step for step, _ in run.curves.train_loss], [value for _, value in run.curves.train_loss]
    axes.plot(steps, values, linestyle=look["linestyle"], color=look["color"], linewidth=0.7, alpha=0.45)


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
