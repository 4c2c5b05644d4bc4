"""Every difference as a dot for each seed and an interval, beside the paper's value: what is noise is seen at a glance."""

from typing import TYPE_CHECKING

from pipeline.report.contrasts import Comparisons, Contrast
from pipeline.report.drawing import COLOURS, GREY, WIDTH, Drawing, drawing, paper_look

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = ((COLOURS["joint"], "o"), (COLOURS["grow"], "s"), (COLOURS["freeze"], "^"), ("#1A2027", "D"))
"""A learning rate's colour and marker, round and round."""


def noise_figure(compared: Comparisons) -> Drawing:
    """A row for each difference, in it one line for each learning rate."""
    from matplotlib.figure import Figure

    names = [contrast.name for contrast in compared[0][1]] if compared else []
    figure = Figure(figsize=(WIDTH, 1.3 + len(names) * (0.3 + 0.14 * len(compared))), layout="constrained")
    axes = figure.subplots()
    missing: list[str] = []
    step = 0.7 / (len(compared) + 1)  # a row's lines: the paper's first
    for place, (rate, contrasts) in enumerate(compared):
        colour, marker = LOOKS[place % len(LOOKS)]
        offset = (place + 1 - len(compared) / 2) * step
        for row, contrast in enumerate(contrasts):
            _draw(axes, row + offset, contrast, colour, marker)
            missing += [f"{contrast.name}, learning rate {rate} ({contrast.ours.gap})"] if contrast.ours.gap else []
        axes.plot([], [], color=colour, marker=marker, linewidth=2, label=rate)
    for row, contrast in enumerate(compared[0][1] if compared else ()):
        axes.plot(contrast.paper, row - len(compared) / 2 * step, label="paper" if row == 0 else None, **paper_look())
    axes.axvline(0, color=GREY, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlabel("nats per target token")
    axes.grid(axis="x", color="#E3E6EA", linewidth=0.8)
    axes.set_axisbelow(True)
    figure.legend(loc="outside upper left", ncols=4, title="learning rate", alignment="left")
    said = "Ticks: seeds; marker: their mean; line: its 95% interval, which takes two seeds or more. Left of zero the first named is lower."
    caption = f"{said}{' Not drawn: ' + ', '.join(missing) + '.' if missing else ''}"
    alt = f"Dot chart of {len(names)} differences of end CE with their 95% intervals over seeds, by learning rate, with the paper's values."
    return drawing("noise-figure", "Differences, seeds and intervals", caption, alt, figure)


def _draw(axes: "Axes", y: float, contrast: Contrast, colour: str, marker: str) -> None:
    ours = contrast.ours
    values = [] if ours.gap else list(ours.by_seed.values())
    axes.plot(values, [y] * len(values), linestyle="", marker="|", markersize=9, markeredgewidth=1.2, color=colour)
    if ours.interval:
        axes.plot(ours.interval, [y, y], color=colour, linewidth=1.6, solid_capstyle="butt")
    if ours.value is not None:
        axes.plot(ours.value, y, marker=marker, markersize=6, color=colour, markeredgecolor="white")
