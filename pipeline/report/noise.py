"""The noise of a comparison: what several seeds and learning rates say of it, and which sign the data support."""

from collections.abc import Sequence
from typing import Any

from pipeline.report.cells import seed_mean
from pipeline.report.contrasts import NORMS, Comparisons, Contrast, contrasts, interaction
from pipeline.report.grid import SEEDS, Cell, Column, Table, beside
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


def choices_of_rate(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The comparisons that can be made: at each learning rate for all cells, and at each cell's best."""
    each = by_rate(runs)
    return [*each, (BEST, at_best(runs))] if len(each) > 1 else each


def by_rate(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """The runs at each learning rate; all of them where none is recorded."""
    unknown = [run for run in runs if run.learning_rate is None]  # without settings, and said wherever it would stand
    return [(f"{rate:g}", [*at_rate(runs, rate), *unknown]) for rate in rates(runs)] or [("not recorded", list(runs))]


def comparisons(runs: Sequence[Run], paper: Paper) -> Comparisons:
    return [(rate, contrasts(members, paper)) for rate, members in choices_of_rate(runs)]


def as_json(compared: Comparisons) -> list[dict[str, Any]]:
    """Every difference, unrounded; what is not known is None, and `gap` or `no_noise` says why."""
    return [_json(rate, contrast) for rate, each in compared for contrast in each]


def _json(rate: str, contrast: Contrast) -> dict[str, Any]:
    ours = contrast.ours
    return {
        "learning_rate": rate,
        "difference": contrast.name,
        "mean": ours.value,
        "paper": contrast.paper,
        "interval": ours.interval,
        "smallest_effect": ours.resolvable,
        "sign": ours.sign,
        "by_seed": dict(ours.by_seed),
        "gap": ours.gap,
        "no_noise": ours.no_noise,
    }


def differences(compared: Comparisons) -> Table:
    """Every difference with its interval, by learning rate."""
    seeds = seeds_in([contrast.ours for _, each in compared for contrast in each])
    mean = (Column("mean", "+z.4f"), Column("paper", "+z.4f", paper=True), Column("mean - paper", "+z.4f"))
    columns = (Column("learning rate"), Column("difference"), *mean, *noise_columns(seeds))
    rows = [
        (rate, contrast.name, *beside(contrast.ours.shown, contrast.paper), *noise_cells(contrast.ours, seeds))
        for rate, each in compared
        for contrast in each
    ]
    return Table("noise", "Differences and their noise", columns, tuple(rows), DEFINITIONS)


def seeds_in(samples: Sequence[Sample]) -> list[int | None]:
    return list(dict.fromkeys(seed for sample in samples for seed in sample.by_seed))


def noise_columns(seeds: Sequence[int | None]) -> tuple[Column, ...]:
    """What stands beside a mean difference: its interval, its sign, what could have been resolved, and every seed."""
    interval = (Column("95% from", "+z.4f"), Column("to", "+z.4f"), Column("sign"), Column("smallest effect", ".4f"))
    return (*interval, SEEDS, *(Column(f"seed {seed}", "+z.4f") for seed in seeds))


def noise_cells(sample: Sample, seeds: Sequence[int | None]) -> tuple[Cell, ...]:
    """The cells of `noise_columns`."""
    low, high = sample.interval or (sample.no_noise, None)
    smallest = sample.no_noise if sample.resolvable is None else sample.resolvable
    return (low, high, sample.sign or sample.no_noise, smallest, sample.n, *map(sample.by_seed.get, seeds))


def means(runs: Sequence[Run]) -> Table | None:
    """End CE of every cell at every learning rate; only where there is more than one run of a cell."""
    if len({run.seed for run in runs}) < 2 and len(rates(runs)) < 2:
        return None
    numbers = ("mean CE", "standard deviation", "95% from", "to", "lowest", "highest")
    columns = (Column("cell"), Column("learning rate"), *(Column(name, ".4f") for name in numbers), SEEDS, Column(""))
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
    comparisons = dict(choices_of_rate(runs))
    said = [(rate, interaction(members)) for rate, members in comparisons.items()]
    headline = said[-1][1]
    if max(sample.n for _, sample in said) < 2:
        return []
    sentences = [_supported(headline, " at each cell's best learning rate" if len(said) > 1 else "")]
    if len(said) > 1:
        each = "; ".join(f"{rate}: {_short(sample)}" for rate, sample in said[:-1])
        sentences.append(f"With one learning rate for all cells the interaction is, at {each}.")
        if {"positive", "negative"} <= {sample.sign for _, sample in said}:
            sentences.append("The data support both signs: which one is decided by the learning rate.")
    return [" ".join(sentences)]


def _supported(sample: Sample, where: str) -> str:
    if sample.gap:
        return f"The interaction{where} is not known ({sample.gap}): the data support no sign."
    by_seed = ", ".join(f"{value:+.4f} ({seed})" for seed, value in sample.by_seed.items())
    found = f"The interaction{where} is {sample.value:+.4f}, by seed {by_seed}"
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
