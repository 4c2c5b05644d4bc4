"""The students of an experiment: each is trained, and looked into at once, so that a study that is stopped shows what it has."""

import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from pipeline.commands.diagnose import DOCUMENTS, diagnose_run
from pipeline.commands.options import log, note
from pipeline.commands.train import run_student, student_job
from pipeline.contract.errors import RunError
from pipeline.contract.layout import ArtifactRoot
from pipeline.executors.base import Executor
from pipeline.workflow import Stage, Workflow

SAVING_SECONDS = 900.0
"""What students that are told to end get for the step or evaluation they are in, and to write their state."""


def student_jobs(workflow: Workflow) -> list[Any]:
    """Every student of an experiment, bound to its cache."""
    named = zip(workflow.students(), workflow.layers(), strict=True)
    shard, overrides = workflow.experiment.shard, workflow.shard_overrides
    return [student_job(shard, workflow.root, overrides, [layer, {"name": name}]) for (name, _), layer in named]


def train_students(workflow: Workflow, devices: int | None, workers: int | None, executor: Executor | None) -> None:
    """Train and look into what is not current, a phase that several runs have in common once.

    One student after the other in this process, unless there are `workers` or an `executor`: then as many at once as it has room for.
    """
    from stage2_student.shared_phases import adopt, donors, turns

    jobs = student_jobs(workflow)
    shared = dict(zip((job.run for job in jobs), donors(jobs), strict=True))
    wanted = {job.run for job, stage in zip(jobs, workflow.stages()[1:-1], strict=True) if _has_to_run(workflow, stage, job.run)}
    for turn in turns(jobs):
        missing = [job for job in turn if job.run in wanted]
        for job in missing:
            adopt(job, shared[job.run])
        if executor is None and (workers or 1) == 1:
            for job in missing:
                run_student(job, devices)
                _look_into(job.run, workflow.root)
        else:
            _train_at_once(missing, workflow.root, devices, workers, executor)
    for job in jobs:  # what an earlier command was stopped before
        _look_into(job.run, workflow.root)


def _has_to_run(workflow: Workflow, stage: Stage, name: str) -> bool:
    """Whether a student is not there; an earlier one with other settings is out of the way afterwards."""
    if stage.state == "stale":
        from stage2_student.job import set_aside

        kept = set_aside(workflow.root.run(name))
        log.print(f"{stage.name}: {stage.reason}; the earlier run is kept as {kept}")
    return stage.state != "current"


def _train_at_once(jobs: Sequence[Any], root: ArtifactRoot, devices: int | None, workers: int | None, executor: Any) -> None:
    """Each student in a seat that takes `devices` times the resources of a worker.

    Raises:
        RunError: a student is done, and its run is not here.
    """
    from pipeline.executors.each import run_each

    for job in jobs:
        job.folder.parent.mkdir(parents=True, exist_ok=True)
    seats = _seats_here(devices or 1, workers or 1) if executor is None else executor.taking(devices or 1)
    works = {job.run: partial(_train, job, devices, root) for job in jobs}
    run_each(seats, works, note, at_once=workers, grace=SAVING_SECONDS)
    for job in jobs:
        if job.record.read("result") is None:
            raise RunError(f"{job.run}: was trained, and its run is not in {job.folder}; runs need a folder that all machines share")


def _seats_here(devices: int, workers: int) -> Executor:
    """This machine's GPUs, or else its cores, dealt to `workers` students of `devices` processes each."""
    from pipeline.executors.devices import deal, share_of_cores, visible_devices
    from pipeline.executors.local import LocalExecutor

    gpus = visible_devices()
    return LocalExecutor(deal(gpus, devices, workers) if gpus else [share_of_cores(devices * workers)])


def _train(job: Any, devices: int | None, root: ArtifactRoot, send: Any) -> None:
    """In a process of the executor's."""
    send("begun")  # who has been heard is told to end, and saves; others are killed
    if not job.folder.parent.is_dir():
        raise RunError(f"{job.folder}: is on no disk of {socket.gethostname()}; runs need a folder that all machines share")
    run_student(job, devices)
    _look_into(job.run, root)


def _look_into(name: str, root: ArtifactRoot) -> None:
    """Diagnose a finished student once: its records stay true, since a student that changes is set aside with them."""
    from stage2_student.diagnostics.diagnose import missing_records

    missing = missing_records(root.run(name))
    if missing:
        log.print(f"diagnostics {name}: missing ({', '.join(missing)})")
        diagnose_run(name, missing, DOCUMENTS, root)
