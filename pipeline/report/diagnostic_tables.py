"""The tables that come from diagnostics: block removal (4) and transitions (A4), beside the paper's."""

from collections.abc import Callable, Sequence
from functools import partial

from pipeline.report import diagnosed
from pipeline.report.cells import seed_mean_of
from pipeline.report.contrasts import NORMS
from pipeline.report.grid import SEEDS, Cell, Column, Table, beside, paired_columns
from pipeline.report.notes import left_out
from pipeline.report.paper import Paper
from pipeline.report.records import Run
from pipeline.report.samples import Sample

CELLS = (("grow", "pre"), ("grow", "post"), ("joint", "pre"), ("joint", "post"))
REMOVAL = (
    ("CE rise", "delta_ce", "delta_ce"),
    ("its standard error", "standard_error_documents", ""),
    ("angle / pi", "angular_distance", "angular"),
)
TRANSITION = (("jump", "jump"), ("AUC 1k", "auc_1k"), ("AUC 5k", "auc_5k"))
SLICE = (("append jump, fixed slice", "append_jump"), ("later rise, fixed slice", "restart_rise"))
PLACES = ("at_50k", "at_100k")


def block_removal(runs: Sequence[Run], paper: Paper) -> Table:
    """Table 4: CE rise and angular distance of each block of the finished students, means over seeds."""
    count = max([3, *(diagnosed.blocks(run) for run in runs)])
    pairs = [column for b in range(count) for column in paired_columns(f"block {b}", "z.3f")]
    columns = (Column("run"), Column("measure"), *pairs, SEEDS)
    rows, cells = [], []
    for curriculum, norm in CELLS:
        published = paper.removal[f"{norm}_{curriculum}"]
        for label, measure, key in REMOVAL:
            means = [seed_mean_of(runs, curriculum, norm, partial(diagnosed.removal, block=b, measure=measure)) for b in range(count)]
            theirs = [published[key][b] if key and b < len(published[key]) else None for b in range(count)]
            values = [cell for mean, their in zip(means, theirs, strict=True) for cell in beside(mean.shown, their)]
            rows.append((f"{norm}-{curriculum}", label, *values, means[0].n))
            cells += means[:1]
    notes = (
        "CE rise = CE without a block less CE with it, on the diagnostic batch; its standard error is of the paired difference over "
        "documents, and is uncertain where these are few. Angle between the stream before and after a block, mean over tokens.",
        "A bypassed block takes its norms with it; post-norm's entry norm stays.",
        *_batches(runs),
        *left_out(cells),
    )
    return Table("table-4", "Table 4. Removing one block", columns, tuple(rows), notes)


def _batches(runs: Sequence[Run]) -> list[str]:
    said = dict.fromkeys(str(diagnosed.look(run.diagnostics["removal"], "on", "about")) for run in runs if "removal" in run.diagnostics)
    return [f"Diagnostic batch: {about}." for about in said]


def transitions(runs: Sequence[Run], paper: Paper) -> Table:
    """Table A4: how the training loss answers an appended block, and what the fixed slice says of it."""
    rows: list[tuple[Cell, ...]] = []
    cells: list[Sample] = []
    for number, place in enumerate(PLACES):
        for label, measure, published in _measures(number, place, paper):
            means = [seed_mean_of(runs, "grow", norm, measure) for norm in NORMS]
            values = [cell for mean, their in zip(means, published, strict=True) for cell in beside(mean.shown, their)]
            rows.append((f"into phase {number + 1}", label, *values, max(mean.n for mean in means)))
            cells += means
    sides = [column for norm in NORMS for column in paired_columns(norm, "z.4f")]
    columns = (Column("transition"), Column("measure"), *sides, SEEDS)
    notes = (
        "Of the grow runs, in nats; jump, AUC and recovery are of the training loss against its mean just before the transition. Recovery "
        "is taken under a trailing mean; the paper's centred one can say 101 steps at the earliest.",
        *_windows(runs),
        "The training loss has other documents at each step; the fixed slice has the same before and after. Its append jump is without any "
        "update between; a later rise is the restarted learning rate's.",
        *left_out(cells),
    )
    return Table("table-a4", "Table A4. What an appended block does to the loss", columns, tuple(rows), notes)


def _measures(number: int, place: str, paper: Paper) -> list[tuple[str, Callable[[Run], Cell], Sequence[float | None]]]:
    """Name, measure of a run and the paper's (pre, post) of one transition; recovery in shares of a phase, whatever its length."""
    of = partial(partial, diagnosed.transition, at=number)
    shares = [steps / paper.settings["steps"] for steps in paper.transition["recovery_steps"][place]]
    return [
        *((label, of(source="loss", measure=key), paper.transition[key][place]) for label, key in TRANSITION),
        ("recovery, share of the phase", partial(diagnosed.recovery_share, at=number), shares),
        *((label, of(source="probe", measure=key), (None, None)) for label, key in SLICE),
    ]


def _windows(runs: Sequence[Run]) -> list[str]:
    found = [diagnosed.look(run.diagnostics["transition"], "found", "windows") for run in runs if "transition" in run.diagnostics]
    windows = [[diagnosed.number(each, name) for name in ("smoothing", "auc_1k", "auc_5k")] for each in found]
    said = dict.fromkeys(f"{a}, {b} and {c} steps" for a, b, c in windows)
    return [f"The paper's windows of 200, 1,000 and 5,000 steps are {text} here, the same shares of a phase." for text in said]
