"""`pipeline run`: a teacher of one's own where the shard says so, cache, students, their diagnostics, report; only what is not current."""

import socket
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import typer

from pipeline.commands.cache_teacher import WorkersOption, run_capture
from pipeline.commands.diagnose import DOCUMENTS, diagnose_run
from pipeline.commands.executor_options import ExecutorOption, RayAddressOption, WorkerResourcesOption, chosen_executor
from pipeline.commands.options import JsonOption, RootOption, SetOption, log, note, only_results_on_stdout, out, print_json
from pipeline.commands.train import run_student, student_job
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

    Students are trained one after the other here, all at once on an `executor`.
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
    _train_students(workflow, devices, executor)
    for name, _ in workflow.students():
        _diagnose(workflow, name)
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


def _train_students(workflow: Workflow, devices: int | None, executor: Any) -> None:
    """Train what is not current, a phase that several runs have in common once."""
    from stage2_student.shared_phases import adopt, donors, turns

    jobs = student_jobs(workflow)
    shared = dict(zip((job.run for job in jobs), donors(jobs), strict=True))
    wanted = {job.run for job, stage in zip(jobs, workflow.stages()[1:-1], strict=True) if _has_to_run(workflow, stage, job.run)}
    for turn in turns(jobs):
        missing = [job for job in turn if job.run in wanted]
        for job in missing:
            adopt(job, shared[job.run])
        if executor is not None:
            _train_at_once(missing, devices, executor)
        else:
            for job in missing:
                run_student(job, devices)


def student_jobs(workflow: Workflow) -> list[Any]:
    """Every student of an experiment, bound to its cache."""
    named = zip(workflow.students(), workflow.layers(), strict=True)
    shard, overrides = workflow.experiment.shard, workflow.shard_overrides
    return [student_job(shard, workflow.root, overrides, [layer, {"name": name}]) for (name, _), layer in named]


def _has_to_run(workflow: Workflow, stage: Stage, name: str) -> bool:
    """Whether a student is not there; an earlier one with other settings is out of the way afterwards."""
    if stage.state == "stale":
        from stage2_student.job import set_aside

        kept = set_aside(workflow.root.run(name))
        log.print(f"{stage.name}: {stage.reason}; the earlier run is kept as {kept}")
    return stage.state != "current"


def _train_at_once(jobs: Sequence[Any], devices: int | None, executor: Any) -> None:
    """Each student in a seat that takes `devices` times the resources of a worker.

    Raises:
        RunError: a student is done, and its run is not here.
    """
    from pipeline.executors.each import run_each

    for job in jobs:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
    run_each(executor.taking(devices or 1), {job.run: partial(_train, job, devices) for job in jobs}, note)
    for job in jobs:
        if job.record.read("result") is None:
            raise RunError(f"{job.run}: was trained, and its run is not in {job.folder}; runs need a folder that all machines share")


def _train(job: Any, devices: int | None, send: Any) -> None:
    """In a process of the executor's."""
    if not job.folder.parent.is_dir():
        raise RunError(f"{job.folder}: is on no disk of {socket.gethostname()}; runs need a folder that all machines share")
    run_student(job, devices)


def _diagnose(workflow: Workflow, name: str) -> None:
    """Look into a finished student once: its records stay true, since a student that changes is set aside with them."""
    from stage2_student.diagnostics.diagnose import missing_records

    missing = missing_records(workflow.root.run(name))
    if missing:
        log.print(f"diagnostics {name}: missing ({', '.join(missing)})")
        diagnose_run(name, missing, DOCUMENTS, workflow.root)


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
