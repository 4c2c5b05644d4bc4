"""The controls' own differences, seed by seed: from the plain run of their cell, and between placements and curricula among themselves."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.report.cells import seed_mean
from pipeline.report.contrasts import COMPARED, NORMS, delta, interaction
from pipeline.report.control_tables import is_longer_joint
from pipeline.report.grid import Column, Table
from pipeline.report.noise import choices_of_rate, noise_cells, noise_columns, seeds_in
from pipeline.report.records import Run
from pipeline.report.samples import Sample, paired


def control_differences(runs: Sequence[Run]) -> Table | None:
    """A row for each difference that a control allows, by learning rate; None where there are no controls."""
    controls = dict.fromkeys(run.control for run in runs if run.control)
    found = [(c, rate, *pair) for c in controls for rate, members in choices_of_rate(runs) for pair in _differences(members, c)]
    if not found:
        return None
    seeds = seeds_in([sample for *_, sample in found])
    columns = (Column("control"), Column("learning rate"), Column("difference"), Column("mean", "+z.4f"), *noise_columns(seeds))
    rows = [(control, rate, name, sample.shown, *noise_cells(sample, seeds)) for control, rate, name, sample in found]
    notes = (
        "CE in nats per target token, paired by seed, as in 'Differences and their noise'. Control less plain: the same placement and "
        "curriculum without what sets the control apart.",
    )
    return Table("controls", "What the controls change", columns, tuple(rows), notes)


def _differences(runs: Sequence[Run], control: str) -> Iterator[tuple[str, Sample]]:
    plain = [run for run in runs if not run.control]
    changed = [replace(run, control="") for run in runs if run.control == control]
    for curriculum, norm in dict.fromkeys((run.curriculum, run.norm) for run in changed):
        ours, theirs = seed_mean(changed, curriculum, norm), seed_mean(plain, curriculum, norm)
        yield f"control less plain, {norm}-{curriculum}", paired([(1, ours), (-1, theirs)])
        if all(is_longer_joint(run) for run in changed):
            yield f"{norm}-grow less control", paired([(1, seed_mean(plain, "grow", norm)), (-1, ours)])
    for curriculum in dict.fromkeys(run.curriculum for run in changed):
        if {run.norm for run in changed if run.curriculum == curriculum} == set(NORMS):
            yield f"post - pre, {curriculum}", delta(changed, curriculum)
    if {run.curriculum for run in changed} >= set(COMPARED):
        yield "interaction", interaction(changed)
