"""`pipeline plan`: what `pipeline run` would do, and why; or what is known of a shard. Runs nothing."""

from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, out, print_json
from pipeline.commands.pilot import pilot_settings
from pipeline.commands.planned_students import planned_students, print_students
from pipeline.commands.run import workflow_of
from pipeline.contract.errors import ManifestError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.experiment import ExperimentManifest
from pipeline.workflow import Workflow


def plan(
    experiment: Annotated[str | None, typer.Argument(help="An experiment's name, or a path to its YAML file.")] = None,
    shard: Annotated[str | None, typer.Option("--shard", help="A shard instead: its name, or a path to its YAML file.")] = None,
    overrides: SetOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print the stages of an experiment, or of a shard alone, with their state and the reason for it, and what is known of their size."""
    if (experiment is None) == (shard is None):
        raise ManifestError(f"plan {experiment or ''}: takes an experiment or --shard NAME, one of the two; for example plan paper-2x2")
    summary = plan_of(workflow_of(experiment, overrides, root)) if experiment else plan_of_shard(shard or "", overrides, root)
    if as_json:
        print_json(summary)
        return
    for stage in summary["stages"]:
        out.print(f"{stage['state']:8s} {stage['name']}: {stage['reason']}")
    if shard:
        _print_shard(shard, summary)
        return
    print_students(summary["students"])
    tokens = (
        "not known before the cache is made"
        if summary["tokens"] is None
        else f"{summary['tokens']:,}, active-layer {summary['active_layer_tokens']:,}"
    )
    out.print(f"teacher passes {summary['teacher_passes']}; target tokens to train on: {tokens}")


def plan_of_shard(name: str, overrides: list[str] | None, root: str | None) -> dict[str, Any]:
    """What is known of a shard without its teacher: whether its cache is there, how many documents it has or would have."""
    from pipeline.contract.logit_cache.index import has_manifest, read_manifest
    from stage1_teacher.piloting.totals import shard_documents

    alone = ExperimentManifest(name="shard", shard=name, runs=[{}])
    workflow = Workflow(alone, ArtifactRoot.resolve(root), pilot_settings(overrides, engine=None))
    stage = workflow.cache_stage()
    splits = read_manifest(workflow.cache).splits.values() if has_manifest(workflow.cache) else []
    return {
        "stages": [stage.as_json()],
        "teacher_passes": int(stage.state != "current"),
        "documents": shard_documents(workflow.shard.documents),
        "tokens": sum(split.tokens for split in splits) or None,
        "active_layer_tokens": None,
        "cache_bytes": sum(part.payload.bytes for split in splits for part in split.shards) or None,
        "gpu_hours": None,
    }


def _print_shard(name: str, summary: dict[str, Any]) -> None:
    cached = f"; cached are {summary['tokens']:,} target tokens in {summary['cache_bytes']:,} bytes" if summary["tokens"] else ""
    out.print(f"{summary['documents']:,} documents, training and validation{cached}")
    if summary["teacher_passes"]:
        out.print(f"'pipeline pilot --shard {name}' tells tokens, disk, hours and money")


def plan_of(workflow: Workflow) -> dict[str, Any]:
    """The graph and its counted budgets; tokens need a finished cache; 'pipeline pilot' tells what making it costs."""
    from pipeline.contract.logit_cache.index import read_manifest

    stages = workflow.stages()
    teacher = workflow.teacher_stage(stages[0])
    cached = stages[0].state == "current"
    students = planned_students(workflow, cached)
    to_train = [
        phase
        for stage, student in zip(stages[1:-1], students, strict=True)
        for phase in student["phases"]
        if stage.state != "current" and not phase["shared_with"]
    ]
    shards = [shard for split in read_manifest(workflow.cache).splits.values() for shard in split.shards] if cached else []
    return {
        "stages": [stage.as_json() for stage in ([teacher] if teacher else []) + stages],
        "teacher_passes": int(not cached),
        "students": students,
        "tokens": sum(phase["tokens"] for phase in to_train) if cached else None,
        "active_layer_tokens": sum(phase["tokens"] * phase["active_layers"] for phase in to_train) if cached else None,
        "cache_bytes": sum(shard.payload.bytes for shard in shards) if cached else None,
        "gpu_hours": None,
    }
