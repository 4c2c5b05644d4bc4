"""Figures of what happened inside the students: scale at the block boundaries, token types, removal; and the 2x2 at a glance.

Where a run was not diagnosed, or a number is missing, the caption says so; nothing is drawn in its place. The paper's values
are crosses.
"""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pipeline.report import diagnosed
from pipeline.report.cells import seed_mean
from pipeline.report.drawing import (
    COLOURS,
    GREY,
    STYLES,
    WIDTH,
    Drawing,
    bar_look,
    cells_of,
    drawing,
    figure_legend,
    gap_words,
    line_look,
    paper_look,
    spread_words,
)
from pipeline.report.grid import Cell
from pipeline.report.paper import Paper
from pipeline.report.records import Run, finite

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COMPARED = ("joint", "grow")


def panels(count: int, height: float, sharey: bool = True) -> "tuple[Figure, list[Axes]]":
    """Side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, list(figure.subplots(1, count, sharey=sharey, squeeze=False)[0])


def interaction(runs: Sequence[Run], paper: Paper) -> Drawing:
    """Figure 3a: endpoint CE by curriculum, a line a placement; ours and the paper's, each on its own scale."""
    figure, (ours, theirs) = panels(2, 3.4, sharey=False)
    missing: list[str] = []
    for norm, (style, marker) in STYLES.items():
        face = "black" if norm == "pre" else "white"
        look: dict[str, Any] = {"linestyle": style, "marker": marker, "color": "black", "markerfacecolor": face, "linewidth": 1.6}
        cells = [seed_mean(runs, curriculum, norm) for curriculum in COMPARED]
        missing += [f"{norm}-{curriculum} ({cell.gap})" for curriculum, cell in zip(COMPARED, cells, strict=True) if cell.gap]
        for seed in dict.fromkeys(seed for cell in cells for seed in cell.by_seed):
            ends = [(place, cell.by_seed[seed]) for place, cell in enumerate(cells) if seed in cell.by_seed]
            ours.plot(*zip(*ends, strict=True), marker=marker, linestyle=style, color=GREY, markersize=3, linewidth=0.6)
        points = [(place, cell.value) for place, cell in enumerate(cells) if cell.value is not None]
        ours.plot([place for place, _ in points], [value for _, value in points], label=f"{norm}-norm", **look)
        theirs.plot(range(len(COMPARED)), [paper.table_1[curriculum][norm] for curriculum in COMPARED], label=f"{norm}-norm", **look)
    for axes, title in ((ours, "here"), (theirs, "paper")):
        axes.set_xticks(range(len(COMPARED)), COMPARED)
        axes.set_xlim(-0.3, len(COMPARED) - 0.7)
        axes.set_title(title, loc="left")
        _grid(axes)
    ours.set_ylabel("validation CE")
    theirs.legend(loc="best")
    not_drawn = f"Not drawn: {', '.join(missing)}. " if missing else ""
    caption = f"Endpoint CE in nats per target token; small and grey: single seeds. The scales differ. {not_drawn}{gap_words(runs)}"
    alt = "Line charts of endpoint validation CE under joint training and under growth, pre-norm and post-norm, here and in the paper."
    return drawing("interaction", "Figure 3a. Placement and curriculum", caption, alt, figure)


def boundary_scale(runs: Sequence[Run], paper: Paper) -> Drawing:
    """Figure 4: mean and standard deviation of per-token RMS after each block at each phase's end of the grow runs."""
    grow = [run for run in runs if run.curriculum == "grow"]
    figure, (means, stds) = panels(2, 3.6, sharey=False)
    missing: list[str] = []
    for *_, members in cells_of(grow):
        for block in range(max(1, *(run.expected_phases for run in members))):
            for axes, key in ((means, "mean"), (stds, "std")):
                _over_phases(axes, members, partial(diagnosed.boundary, block=block, keys=(key,)), "boundary", missing, block)
    published = [(0, paper.boundary_std["first"]), (len(paper.transition["jump"]), paper.boundary_std["last"])]
    stds.plot(*zip(*published, strict=True), label="paper, pre, block 0", **paper_look())
    _phase_axes(means, "mean RMS")
    _phase_axes(stds, "std of RMS")
    stds.legend(loc="best", fontsize=8)
    figure_legend(figure, grow)
    caption = (
        "Per-token RMS of the residual stream after each block on the diagnostic batch, at each phase's end (grow runs); the number "
        f"at a line's end is its block. {spread_words(grow, 'whiskers')}{_missing_words(missing, grow)}"
    )
    alt = "Line charts of the mean and the standard deviation of block-boundary RMS over phases, one line a block, pre-norm and post-norm."
    return drawing("boundary-rms", "Figure 4. Scale at the block boundaries", caption, alt, figure)


def token_type_scale(runs: Sequence[Run], paper: Paper) -> Drawing:
    """Figure 5a: mean RMS after block 0 of document boundaries and of regular tokens, over the phases of the grow runs."""
    grow = [run for run in runs if run.curriculum == "grow"]
    figure, sides = panels(2, 3.6)
    missing: list[str] = []
    last = len(paper.transition["jump"])
    for axes, kind in zip(sides, ("document_boundary", "regular"), strict=True):
        for *_, members in cells_of(grow):
            _over_phases(axes, members, partial(diagnosed.boundary, block=0, keys=("by_type", kind, "mean")), "token_types", missing)
        published = paper.token_types[f"pre_{kind}"]
        axes.plot([0, last], [published["first"], published["last"]], label="paper, pre-norm", **paper_look())
        _phase_axes(axes, "mean RMS after block 0" if kind == "document_boundary" else "")
        axes.set_xlabel(f"phase\n{kind.replace('_', ' ')} tokens")
    sides[1].legend(loc="best", fontsize=8)
    figure_legend(figure, grow)
    spread = spread_words(grow, "whiskers")
    caption = f"Document boundaries are the first token of a document and separators. {spread}{_missing_words(missing, grow)}"
    alt = "Line charts of the mean RMS of document-boundary tokens and of regular tokens after block 0, over phases."
    return drawing("token-types", "Figure 5a. Whose scale drifts", caption, alt, figure)


def rms_distribution(runs: Sequence[Run], paper: Paper) -> Drawing:
    """Figure A1: per-token RMS after the last block of the finished students."""
    from matplotlib.ticker import MaxNLocator

    figure, sides = panels(2, 3.6)
    missing: list[str] = []
    for axes, norm in zip(sides, STYLES, strict=True):
        for run in (run for run in runs if run.norm == norm):
            shape = diagnosed.histogram(run)
            if isinstance(shape, str):
                missing.append(f"{run.label} ({shape})")
                continue
            width = 1.4 if len(runs) <= 4 else 0.9
            axes.stairs(
                shape["counts"], shape["edges"], color=COLOURS.get(run.curriculum, GREY), linestyle=STYLES[norm][0], linewidth=width
            )
        _log(axes.yaxis)
        if axes.dataLim.x1 > 10 * axes.dataLim.x0 > 0:
            _log(axes.xaxis)
        else:
            axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(f"RMS after the last block, {norm}-norm")
        _grid(axes)
    sides[0].set_ylabel("tokens")
    figure_legend(figure, runs)
    each = "An outline a run: per-token RMS of the finished students on the diagnostic batch, in bins of equal ratio."
    caption = f"{each} {_missing_words(missing, runs)}"
    alt = "Histograms of per-token RMS after the last block, pre-norm and post-norm, one outline a run."
    return drawing("rms-distribution", "Figure A1. Per-token scale of the finished students", caption, alt, figure)


def removal_bars(runs: Sequence[Run], paper: Paper) -> Drawing:
    """Figure A2: CE rise and angular distance of each block, by run, with the paper's values."""
    figure, sides = panels(2, 3.6, sharey=False)
    missing: list[str] = []
    members = [run for run in runs if run.curriculum in COMPARED]
    measures = (("delta_ce", "delta_ce", "CE rise"), ("angular_distance", "angular", "angle / pi"))
    for axes, (measure, key, label) in zip(sides, measures, strict=True):
        _removed(axes, members, paper, (measure, key), missing)
        axes.set_xlabel("block removed")
        axes.set_ylabel(label)
        axes.set_xticks(range(max([3, *map(diagnosed.blocks, members)])))
        _grid(axes)
    figure_legend(figure, members, filled=True)
    words = f"{spread_words(members, 'whiskers')}{_missing_words(missing, members)}"
    caption = f"Filled: pre-norm, hatched: post-norm; crosses: the paper's. {words}"
    alt = "Bar charts of the CE rise and of the angular distance of each removed block, by run."
    return drawing("block-removal", "Figure A2. Removing one block", caption, alt, figure)


def _removed(axes: "Axes", members: Sequence[Run], paper: Paper, keys: tuple[str, str], missing: list[str]) -> None:
    """A group of bars a block, in it a bar a cell."""
    cells, (measure, key) = cells_of(members), keys
    width = 0.8 / max(1, len(cells))
    for place, (curriculum, norm, runs) in enumerate(cells):
        published = paper.removal.get(f"{norm}_{curriculum}", {}).get(key, ())
        look = bar_look(curriculum, norm)
        for block in range(max(3, *map(diagnosed.blocks, runs))):
            x = block + (place - (len(cells) - 1) / 2) * width
            found = [_plotted(diagnosed.removal(run, block, measure), run, missing) for run in runs]
            values = [value for value in found if value is not None]
            if values:
                axes.bar(x, fmean(values), width * 0.9, **look)
                _whiskers(axes, [x], [values], "black")
            if block < len(published):
                axes.plot(x, published[block], **paper_look())


def _over_phases(
    axes: "Axes", members: Sequence[Run], measure: Callable[[Any], Cell], record: str, missing: list[str], block: int | None = None
) -> None:
    """One cell's line over its phases, means over seeds; a block's line begins with the phase that has the block."""
    by_phase: dict[int, list[float]] = {}
    for run in members:
        ends = diagnosed.phase_ends(run, record)
        if not ends:
            missing.append(f"{run.label} ({diagnosed.NOT_DIAGNOSED})")
        for phase, found in ends.items():
            value = _plotted(measure(found), run, missing) if block is None or phase >= block else None
            if value is not None:
                by_phase.setdefault(phase, []).append(value)
    if not by_phase:
        return
    phases = sorted(by_phase)
    means = _whiskered(axes, phases, [by_phase[phase] for phase in phases], line_look(members[0].curriculum, members[0].norm))
    if block is not None:
        axes.annotate(str(block), (phases[-1], means[-1]), textcoords="offset points", xytext=(6, -3), fontsize=8, color=GREY)


def _whiskered(axes: "Axes", places: Sequence[float], values: Sequence[Sequence[float]], look: dict[str, Any]) -> list[float]:
    """A line through the means, whiskers from lowest to highest where there are several values; returns the means."""
    means = [fmean(each) for each in values]
    axes.plot(places, means, linewidth=1.6, markersize=5, **look)
    _whiskers(axes, places, values, look["color"])
    return means


def _whiskers(axes: "Axes", places: Sequence[float], values: Sequence[Sequence[float]], colour: str) -> None:
    several = [(place, each) for place, each in zip(places, values, strict=True) if len(each) > 1]
    for place, each in several:
        axes.plot([place, place], [min(each), max(each)], color=colour, linewidth=1.1, marker="_", markersize=5)


def _plotted(cell: Cell, run: Run, missing: list[str]) -> float | None:
    value = finite(cell)
    if value is None and isinstance(cell, str) and cell != "no such block":
        missing.append(f"{run.label} ({cell})")
    return value


def _missing_words(missing: Sequence[str], runs: Sequence[Run]) -> str:
    named = ", ".join(dict.fromkeys(missing))
    if not runs:
        return "There is no such run here."
    return f"Not drawn: {named}." if named else ""


def _grid(axes: "Axes") -> None:
    axes.grid(axis="y", color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)


def _phase_axes(axes: "Axes", label: str) -> None:
    from matplotlib.ticker import MultipleLocator

    _log(axes.yaxis)
    axes.xaxis.set_major_locator(MultipleLocator(1))
    axes.set_xlim(-0.3, max(2.0, axes.dataLim.x1) + 0.3)  # the paper's three phases at least
    axes.set_xlabel("phase")
    axes.set_ylabel(label)
    _grid(axes)


def _log(axis: Any) -> None:
    """A log scale with plain numbers at 1, 2 and 5 of each decade, or of decades alone where there are many."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 2000 * low else (1,), numticks=10))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_locator(NullLocator())
