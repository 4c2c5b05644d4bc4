"""`pipeline plan`: what `pipeline run` would do, and why; runs nothing."""

from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, out, print_json
from pipeline.commands.run import workflow_of
from pipeline.workflow import Workflow


def plan(
    experiment: Annotated[str, typer.Argument(help="An experiment's name, or a path to its YAML file.")],
    overrides: SetOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an experiment's stages with their state and the reason for it, and its budgets."""
    summary = plan_of(workflow_of(experiment, overrides, root))
    if as_json:
        print_json(summary)
        return
    for stage in summary["stages"]:
        out.print(f"{stage['state']:8s} {stage['name']}: {stage['reason']}")
    tokens = (
        "not known before the cache is made"
        if summary["tokens"] is None
        else f"{summary['tokens']:,}, active-layer {summary['active_layer_tokens']:,}"
    )
    out.print(f"teacher passes {summary['teacher_passes']}; target tokens to train on: {tokens}")


def plan_of(workflow: Workflow) -> dict[str, Any]:
    """The graph and its counted budgets; tokens need a finished cache, costs a pilot, which this version has not."""
    stages = workflow.stages()
    cache_is_current = stages[0].state == "current"
    to_train = [stage.state != "current" for stage in stages[1:-1]]
    budgets = _budgets(workflow, to_train) if cache_is_current else {"tokens": None, "active_layer_tokens": None, "cache_bytes": None}
    return {"stages": [stage.as_json() for stage in stages], "teacher_passes": int(not cache_is_current), **budgets, "gpu_hours": None}


def _budgets(workflow: Workflow, to_train: list[bool]) -> dict[str, Any]:
    """Of the students that are not current."""
    from pipeline.commands.train import student_job
    from pipeline.contract.logit_cache.index import read_manifest
    from stage2_student.training_plan import training_plan

    jobs = [
        student_job(workflow.experiment.shard, workflow.root, workflow.shard_overrides, [layer])
        for layer, wanted in zip(workflow.layers(), to_train, strict=True)
        if wanted
    ]
    plans = [training_plan(job) for job in jobs]
    shards = [shard for split in read_manifest(workflow.cache).splits.values() for shard in split.shards]
    return {
        "tokens": sum(plan["tokens_total"] for plan in plans),
        "active_layer_tokens": sum(plan["active_layer_tokens"] for plan in plans),
        "cache_bytes": sum(shard.payload.bytes for shard in shards),
    }
