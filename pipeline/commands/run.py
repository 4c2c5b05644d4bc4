"""`pipeline run`: a teacher of one's own where the shard says so, cache, students, their diagnostics, report; only what is not current."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from pipeline.commands.cache_teacher import WorkersOption, run_capture
from pipeline.commands.executor_options import ExecutorOption, RayAddressOption, WorkerResourcesOption, chosen_executor
from pipeline.commands.options import JsonOption, RootOption, SetOption, log, only_results_on_stdout, out, print_json
from pipeline.commands.run_students import train_students
from pipeline.commands.train_teacher import run_training
from pipeline.contract.atomic_io import write_text
from pipeline.contract.errors import ManifestError, RunError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.find import load_experiment
from pipeline.contract.manifest.overrides import read_overrides, split_by_owner
from pipeline.workflow import Stage, Workflow


def run(
    experiment: Annotated[str, typer.Argument(help="An experiment's name, or a path to its YAML file.")],
    overrides: SetOption = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Processes a student is trained with.")] = None,
    executor: ExecutorOption = "local",
    workers: WorkersOption = None,
    worker_resources: WorkerResourcesOption = None,
    ray_address: RayAddressOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make everything an experiment needs and is not there yet: one teacher pass, its students, their diagnostics, the report.

    A teacher of one's own (teacher.model: trained:NAME) is trained first.
    """
    from stage2_student.launch import launched_by_another

    if launched_by_another():
        raise RunError("pipeline run: was started by a launcher, which starts it many times; start it once with --devices N")
    workflow = workflow_of(experiment, overrides, root)
    with only_results_on_stdout(), chosen_executor(executor, worker_resources, ray_address) as chosen:
        summary, text = run_workflow(workflow, devices, workers, chosen)
    if as_json:
        print_json(summary)
    else:
        out.print(f"{text}\n\nreport: {summary['report']}")


def workflow_of(experiment: str, overrides: list[str] | None, root: str | None) -> Workflow:
    """Bind an experiment to the command line.

    Raises:
        ManifestError: among others, the experiment's `set` holds what is no setting of a shard, or `--set` one value of what it lists.
    """
    manifest = load_experiment(experiment)
    of_shard, others = split_by_owner(manifest.set)
    if others:
        raise ManifestError(f"{manifest.name}: set {next(iter(others))} is a student's setting; write it under `student:`")
    shard, student = split_by_owner(read_overrides(overrides or []))
    for setting, listed in (("seed", manifest.seeds), ("learning_rate", manifest.learning_rates)):
        if setting in student and listed:
            raise ManifestError(f"--set {setting}={student[setting]}: {manifest.name} lists {setting}s={listed}; change that list instead")
    return Workflow(manifest, ArtifactRoot.resolve(root), of_shard | shard, student)


def run_workflow(workflow: Workflow, devices: int | None, workers: int | None = None, executor: Any = None) -> tuple[dict[str, Any], str]:
    """Bring every stage up to date; returns what `--json` prints, and table 1 as text.

    Students are trained one after the other, or several at once where `workers` or an `executor` says so.
    """
    if executor is not None:
        workflow = replace(workflow, root=workflow.root.absolute())
    stages = workflow.stages()
    teacher = workflow.teacher_stage(stages[0])
    planned = [*([teacher] if teacher else []), *stages]
    for stage in planned:
        log.print(f"{stage.name}: {stage.state} ({stage.reason})")
    if teacher and teacher.state != "current":
        _train_teacher(workflow, teacher)
    teacher_passes = _capture(workflow, stages[0], workers, executor)
    train_students(workflow, devices, workers, executor)
    report = write_report(workflow)
    results = [folder.read("result") for folder in workflow.runs()]
    summary = {
        "experiment": workflow.experiment.name,
        "teacher_passes": teacher_passes,
        "students": [student_summary(result) for result in results],
        "table_1": report.table_1,
        "noise": report.noise,
        "stages": [stage.as_json() for stage in planned],
        "report": str(report.page),
    }
    return summary, table_text(report)


def _train_teacher(workflow: Workflow, stage: Stage) -> None:
    """Train the teacher of the experiment's shard, or of the other shard that `trained:NAME` names.

    Raises:
        TeacherError: one that was trained in another way is in its place; caches may be made from it.
    """
    trained = stage.name.removeprefix("teacher ")
    own = trained == workflow.shard.name
    run_training(workflow.experiment.shard if own else trained, workflow.shard_overrides if own else {}, workflow.root)


def _capture(workflow: Workflow, stage: Stage, workers: int | None, executor: Any) -> int:
    if stage.state == "current":
        return 0
    summary = run_capture(workflow.experiment.shard, workflow.shard_overrides, workflow.root, "all", workers, executor)
    return int(summary["shards_written"] > 0)


def write_report(workflow: Workflow) -> Any:
    """Write the report and note what it was made from."""
    from pipeline.report.build import build_report

    experiment, folder = workflow.experiment, workflow.root.report(workflow.experiment.name)
    report = build_report(experiment.name, workflow.runs(), folder, caveat=experiment.caveat, about=experiment.about)
    write_text(folder / "inputs.txt", workflow.report_inputs() + "\n")
    return report


def table_text(report: Any) -> str:
    from pipeline.report.build import table_1_text

    return table_1_text(report)


def student_summary(result: dict[str, Any]) -> dict[str, Any]:
    """One student's line of `--json`."""
    keys = (
        "run",
        "norm",
        "curriculum",
        "seed",
        "val_ce_start",
        "val_ce",
        "val_kl",
        "val_kd",
        "val_ppl",
        "kl_kind",
        "teacher_ce",
        "steps_executed",
    )
    return {key: result[key] for key in keys}
