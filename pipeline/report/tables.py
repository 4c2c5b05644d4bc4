"""The tables of the report, ours beside the paper's. Pure: runs in, `Table` out; no torch, no matplotlib."""

from collections.abc import Sequence
from typing import Any

from pipeline.report.cells import difference, seed_mean
from pipeline.report.contrasts import COMPARED, NORMS, delta, freeze_penalty, interaction
from pipeline.report.grid import SEEDS, Cell, Column, Table, beside, paired_columns
from pipeline.report.notes import left_out, seed_note, unequal_seeds
from pipeline.report.paper import Paper
from pipeline.report.records import Phase, Run, finite
from pipeline.report.samples import Sample

NEEDS_BOTH = "needs both"
TABLE_1 = "CE in nats per target token at the end of training; interaction = (post - pre) under grow less (post - pre) under joint."


def table_1(runs: Sequence[Run]) -> dict[str, Any]:
    """Validation CE at the endpoint: `{"joint": {"pre", "post", "delta"}, "grow": {...}, "interaction"}`.

    Nats a target token, unrounded means over seeds; delta = post - pre, interaction = delta grow - delta joint, over the seeds that
    their cells have in common (table 1 of the paper). None where a run is missing or has a problem.
    """
    rows: dict[str, Any] = {}
    for curriculum in COMPARED:
        cells = {norm: seed_mean(runs, curriculum, norm).value for norm in NORMS}
        rows[curriculum] = {**cells, "delta": delta(runs, curriculum).value}
    return {**rows, "interaction": interaction(runs).value}


def validation_ce(runs: Sequence[Run], paper: Paper, verdict: Sequence[str] = ()) -> Table:
    """Table 1; under it `verdict`, or the sentence on one seed."""
    cells = [seed_mean(runs, curriculum, norm) for curriculum in COMPARED for norm in NORMS]
    rows = [_placement_row(runs, paper.table_1[curriculum], curriculum) for curriculum in COMPARED]
    rows.append(("interaction", *[None] * 6, *_beside(interaction(runs), paper.interaction), None))
    notes = (*seed_note(runs, cells), *verdict, *left_out(cells), TABLE_1)
    return Table("table-1", "Table 1. Validation CE by curriculum and norm placement", _placement_columns(), tuple(rows), notes)


def _placement_columns() -> tuple[Column, ...]:
    return (
        Column("curriculum"),
        *paired_columns("pre", ".4f"),
        *paired_columns("post", ".4f"),
        *paired_columns("post - pre", "+z.4f"),
        SEEDS,
    )


def _placement_row(runs: Sequence[Run], paper: Any, curriculum: str) -> tuple[Cell, ...]:
    pre, post = (seed_mean(runs, curriculum, norm) for norm in NORMS)
    seeds: Cell = pre.n if pre.n == post.n else f"pre {pre.n}, post {post.n}"
    values = (*_beside(pre, paper["pre"]), *_beside(post, paper["post"]), *_beside(delta(runs, curriculum), paper["delta"]))
    return (curriculum, *values, seeds)


def _beside(ours: Sample, theirs: float) -> tuple[Cell, Cell, Cell]:
    return beside(ours.shown, theirs)


def single_block(runs: Sequence[Run], paper: Paper) -> Table:
    """Table 2: the one-block student at the end of phase 0 of the grow runs."""
    measures = (("ce", "CE", ".4f"), ("kd", "KD loss", ".4f"), ("ppl", "PPL", ",.2f"))
    columns = (Column("placement"), *(column for _, title, spec in measures for column in paired_columns(title, spec)), SEEDS)
    rows: list[tuple[Cell, ...]] = []
    cells = []
    for norm in NORMS:
        means = {name: seed_mean(runs, "grow", norm, name, phase=0) for name, _, _ in measures}
        values = [cell for name, mean in means.items() for cell in _beside(mean, paper.single_block[norm][name])]
        rows.append((norm, *values, means["ce"].n))
        cells.append(means["ce"])
    notes = ("The endpoint of phase 0 of the grow runs: one block under the head.", *left_out(cells))
    return Table("table-2", "Table 2. A single block", columns, tuple(rows), notes)


def freeze_table(runs: Sequence[Run], paper: Paper) -> Table:
    """Table A3."""
    rows = [_placement_row(runs, paper.freeze[curriculum], curriculum) for curriculum in ("grow", "freeze")]
    penalties = [cell for norm in NORMS for cell in _beside(freeze_penalty(runs, norm), paper.penalty(norm))]
    rows.append(("penalty", *penalties, None, None, None, None))
    cells = [seed_mean(runs, curriculum, norm) for curriculum in ("grow", "freeze") for norm in NORMS]
    definition = (
        "CE in nats per target token; penalty = freeze - grow. The paper states one penalty for both placements, "
        f"{paper.freeze_penalty}; the values here are the differences of its CEs."
    )
    notes = (*unequal_seeds(cells), *left_out(cells), definition)
    return Table("table-a3", "Table A3. Validation CE when finished blocks are frozen", _placement_columns(), tuple(rows), notes)


def per_phase(runs: Sequence[Run]) -> Table:
    """Every phase endpoint of every run; a phase without a record has a row that says so."""
    columns = (
        *(Column("run"), Column("phase", "d"), Column("norm"), Column("active layers", "d"), Column("steps", ",d")),
        *(Column("CE", ".4f"), Column("KL", ".4f"), Column("KL kind"), Column("KD", ".4f"), Column("PPL", ",.2f")),
    )
    rows = [
        _phase_row(run, index) for run in runs for index in range(max([run.expected_phases, *(phase.index + 1 for phase in run.phases)]))
    ]
    notes = ("CE, KL and KD in nats per target token on the validation documents at the end of each phase; PPL = exp(CE).",)
    return Table("phases", "Endpoints of every phase", columns, tuple(rows), notes)


def _phase_row(run: Run, index: int) -> tuple[Cell, ...]:
    phase = run.phase(index)
    if phase is None:
        return (run.label, index, run.norm, None, None, run.problem_kind, None, None, None, None)
    ce, kl, kd, ppl = (_shown(phase, name) for name in ("ce", "kl", "kd", "ppl"))
    return (run.label, index, phase.norm, phase.active_layers, phase.steps, ce, kl, str(run.result.get("kl_kind", "unknown")), kd, ppl)


def _shown(phase: Phase, name: str) -> Cell:
    value = phase.values[name]
    if finite(value) is not None:
        return value
    return "missing" if value is None else "NaN"


def budgets(runs: Sequence[Run], paper: Paper) -> Table:
    """Table A2, measured: what each run was given; the paper's rows below."""
    counts = [Column(name, ",.0f") for name in ("total tokens", "unique tokens", "active-layer tokens", "optimizer steps")]
    columns = (Column("run"), Column("phases", "d"), Column("active layers"), *counts)
    keys = ("tokens_total", "tokens_unique", "active_layer_tokens", "optimizer_steps")
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        layers = ", ".join(str(phase.active_layers) for phase in run.phases)
        rows.append((run.label, len(run.phases) or run.problem_kind, layers, *(_recorded(run, key) for key in keys)))
    for row in paper.budgets:
        layers = ", ".join(map(str, row.layers))
        active = row.total_tokens / row.phases * sum(row.layers)
        rows.append((f"paper: {row.name}", row.phases, layers, row.total_tokens, row.unique_tokens, active, None))
    notes = (
        "Target tokens, counted in training; active-layer tokens = sum over steps of target tokens x active layers.",
        "The paper's active-layer tokens are worked out here from its other columns, phases taken as equally long.",
    )
    return Table("budgets", "Table A2. Training budgets", columns, tuple(rows), notes)


def _recorded(run: Run, key: str) -> Cell:
    value = run.number(key)
    return (run.problem_kind or "missing") if value is None else value


def run_summary(runs: Sequence[Run], paper: Paper) -> Table:
    """Start and end of every run beside its teacher."""
    values = [Column(name, ".4f") for name in ("start CE", "end CE", "drop", "teacher CE")]
    columns = (Column("run"), Column("seed", "d"), *values, Column("parameters", ",.0f"))
    notes = (
        "CE in nats per target token on the validation documents; drop = start - end.",
        f"The paper states {paper.parameters / 1e9:.2f} billion parameters for its students.",
    )
    return Table("runs", "Runs", columns, tuple(_run_row(run) for run in runs), notes)


def _run_row(run: Run) -> tuple[Cell, ...]:
    start = run.number("val_ce_start")
    end = None if run.problem else run.phases[-1].values["ce"]
    drop = difference(start, end)
    shown = run.problem_kind if end is None else end
    recorded = [_recorded(run, key) for key in ("val_ce_start", "teacher_ce", "parameters")]
    return (run.label, run.seed, recorded[0], shown, NEEDS_BOTH if drop is None else drop, *recorded[1:])
