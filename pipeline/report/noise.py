"""The noise of a comparison: what several seeds and learning rates say of it, and which sign the data support."""

from collections.abc import Sequence

from pipeline.report.cells import seed_mean
from pipeline.report.contrasts import NORMS, Contrast, contrasts, interaction
from pipeline.report.grid import Cell, Column, Table
from pipeline.report.learning_rates import at_best, at_rate, best_rate, rates
from pipeline.report.notes import left_out
from pipeline.report.paper import Paper
from pipeline.report.records import Run
from pipeline.report.samples import Sample

BEST = "each cell's best"
POWERED = "power 80% at alpha 5%, two-sided"
DEFINITIONS = (
    "CE in nats per target token, the difference taken within each seed and then averaged. Interval: 95%, Student's t over seeds. "
    f"Smallest effect: the true one that such a set of seeds would find at {POWERED}, were the spread over seeds the one seen.",
    "A sign is supported where the interval leaves out zero. Each interval stands for itself: the more are read, the likelier one of them "
    "misses. A seed sets the initial weights and the order of the documents; the documents are the same for all.",
)


def settings_of(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The comparisons that can be made: at each learning rate for all cells, and at each cell's best."""
    each = by_rate(runs)
    return [*each, (BEST, at_best(runs))] if len(each) > 1 else each


def by_rate(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The runs at each learning rate; all of them where none is recorded."""
    return [(f"{rate:g}", at_rate(runs, rate)) for rate in rates(runs)] or [("not recorded", list(runs))]


def differences(runs: Sequence[Run], paper: Paper) -> Table:
    """Every difference with its interval, by learning rate."""
    columns = (
        *(Column("learning rate"), Column("difference"), Column("mean", "+z.4f"), Column("paper", "+z.4f", paper=True)),
        *(Column("mean - paper", "+z.4f"), Column("95% from", "+z.4f"), Column("to", "+z.4f"), Column("sign")),
        *(Column("smallest effect", ".4f"), Column("seeds", "d"), Column("by seed")),
    )
    rows = [(rate, *_row(contrast)) for rate, members in settings_of(runs) for contrast in contrasts(members, paper)]
    return Table("noise", "Differences and their noise", columns, tuple(rows), DEFINITIONS)


def _row(contrast: Contrast) -> tuple[Cell, ...]:
    ours = contrast.ours
    off = None if ours.value is None else ours.value - contrast.paper
    low, high = ours.interval or (ours.no_noise, None)
    sign = f"{ours.sign}" if ours.sign else ours.no_noise
    smallest = ours.no_noise if ours.resolvable is None else ours.resolvable
    return (contrast.name, ours.shown, contrast.paper, off, low, high, sign, smallest, ours.n, by_seed(ours))


def by_seed(sample: Sample) -> str:
    return "" if sample.gap else ", ".join(f"{value:+.4f} ({seed})" for seed, value in sample.by_seed.items())


def means(runs: Sequence[Run]) -> Table | None:
    """End CE of every cell at every learning rate; only where there is more than one run of a cell."""
    if len({run.seed for run in runs}) < 2 and len(rates(runs)) < 2:
        return None
    columns = (
        *(
            Column("cell"),
            Column("learning rate"),
            Column("mean CE", ".4f"),
            Column("standard deviation", ".4f"),
            Column("95% from", ".4f"),
        ),
        *(Column("to", ".4f"), Column("lowest", ".4f"), Column("highest", ".4f"), Column("seeds", "d"), Column("")),
    )
    cells = dict.fromkeys((run.curriculum, norm) for run in runs for norm in NORMS)
    rows: list[tuple[Cell, ...]] = []
    samples: list[Sample] = []
    for curriculum, norm in cells:
        members = [run for run in runs if (run.curriculum, run.norm) == (curriculum, norm)]
        best = best_rate(members) if members else None
        for rate, at in by_rate(runs):
            sample = seed_mean(at, curriculum, norm)
            rows.append((f"{norm}-{curriculum}", rate, *_spread(sample), "best" if best is not None and rate == f"{best:g}" else ""))
            samples.append(sample)
    notes = ("CE in nats per target token at the end of training, over seeds; the interval is the mean's.", *left_out(samples))
    return Table("means", "End CE by cell and learning rate", columns, tuple(rows), notes)


def _spread(sample: Sample) -> tuple[Cell, ...]:
    if sample.gap:
        return (sample.gap, None, None, None, None, None, 0)
    low, high = sample.interval or (sample.no_noise, None)
    values = sample.by_seed.values()
    return (sample.value, sample.no_noise or sample.deviation, low, high, min(values), max(values), sample.n)


def verdict(runs: Sequence[Run]) -> list[str]:
    """Whether the data support a sign of the interaction, and never more; nothing where a cell has one seed, which is said elsewhere."""
    comparisons = dict(settings_of(runs))
    said = [(rate, interaction(members)) for rate, members in comparisons.items()]
    headline = said[-1][1]
    if max(sample.n for _, sample in said) < 2:
        return []
    sentences = [_supported(headline, " at each cell's best learning rate" if len(said) > 1 else "")]
    if len(said) > 1:
        each = "; ".join(f"{rate}: {_short(sample)}" for rate, sample in said[:-1])
        sentences.append(f"With one learning rate for all cells the interaction is, at {each}.")
        if {sample.value > 0 for _, sample in said if sample.value} == {True, False}:
            sentences.append("Its sign is not the same at all of these: it depends on the learning rate.")
    return [" ".join(sentences)]


def _supported(sample: Sample, where: str) -> str:
    if sample.gap:
        return f"The interaction{where} is not known ({sample.gap}): the data support no sign."
    found = f"The interaction{where} is {sample.value:+.4f}, by seed {by_seed(sample)}"
    if sample.interval is None:
        unknown = "one seed" if sample.n == 1 else "the seeds agree as copies of one run would"
        return f"{found}: {unknown}, and nothing is known of its noise; the data support no sign."
    low, high = sample.interval
    return (
        f"{found}; 95% interval {low:+.4f} to {high:+.4f} over {sample.n} paired seeds: the data support {_sign(sample)}. "
        f"The smallest effect that could have been resolved is {sample.resolvable:.4f} ({POWERED})."
    )


def _sign(sample: Sample) -> str:
    return f"a {sample.sign} sign" if sample.sign in ("positive", "negative") else "no sign"


def _short(sample: Sample) -> str:
    return sample.gap or f"{sample.value:+.4f} ({sample.no_noise or _sign(sample)})"
