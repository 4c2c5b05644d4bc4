"""What is compared: placements under one curriculum, curricula under one placement, and the interaction; each taken seed by seed."""

from collections.abc import Sequence
from typing import NamedTuple

from pipeline.report.cells import seed_mean
from pipeline.report.paper import Paper
from pipeline.report.records import Run
from pipeline.report.samples import Sample, paired

NORMS = ("pre", "post")
COMPARED = ("joint", "grow")


class Contrast(NamedTuple):
    """A difference of end CEs in nats a target token, ours and the paper's."""

    name: str
    ours: Sample
    paper: float


Comparisons = Sequence[tuple[str, Sequence[Contrast]]]
"""By the learning rate that they were made at."""


def delta(runs: Sequence[Run], curriculum: str) -> Sample:
    """CE(post) - CE(pre) under one curriculum."""
    return paired([(1, seed_mean(runs, curriculum, "post")), (-1, seed_mean(runs, curriculum, "pre"))])


def interaction(runs: Sequence[Run]) -> Sample:
    """(post - pre) under grow less (post - pre) under joint (table 1 of the paper)."""
    signs = {("grow", "post"): 1, ("grow", "pre"): -1, ("joint", "post"): -1, ("joint", "pre"): 1}
    return paired([(sign, seed_mean(runs, *cell)) for cell, sign in signs.items()])


def freeze_penalty(runs: Sequence[Run], norm: str) -> Sample:
    """CE(freeze) - CE(grow) of one placement (table A3 of the paper)."""
    return paired([(1, seed_mean(runs, "freeze", norm)), (-1, seed_mean(runs, "grow", norm))])


def contrasts(runs: Sequence[Run], paper: Paper) -> list[Contrast]:
    """All that the paper draws conclusions from; those of freeze only where there are freeze runs."""
    found = [Contrast(f"post - pre, {curriculum}", delta(runs, curriculum), paper.table_1[curriculum]["delta"]) for curriculum in COMPARED]
    found.append(Contrast("interaction", interaction(runs), paper.interaction))
    if any(run.curriculum == "freeze" for run in runs):
        found.append(Contrast("post - pre, freeze", delta(runs, "freeze"), paper.freeze["freeze"]["delta"]))
        found += [Contrast(f"freeze penalty, {norm}", freeze_penalty(runs, norm), paper.penalty(norm)) for norm in NORMS]
    return found
