"""The runs of an experiment as a table: phases, budgets, and which phases are trained once for several runs."""

from typing import Any

from pipeline.commands.run_students import student_jobs
from pipeline.commands.tables import print_table
from pipeline.workflow import Workflow

BUDGETS = ("tokens_unique", "tokens_total", "active_layer_tokens")


def planned_students(workflow: Workflow, cached: bool) -> list[dict[str, Any]]:
    """Each run's phases and budgets, in target tokens: None before a finished cache says how long documents are.

    Raises:
        CacheError, RunError: a finished cache cannot serve a run.
    """
    from stage2_student.shared_phases import donors
    from stage2_student.training_plan import training_plan

    jobs = student_jobs(workflow) if cached else _jobs_to_be(workflow)
    plans = [training_plan(job) if cached else _without_tokens(job) for job in jobs]
    for plan, shared in zip(plans, donors(jobs), strict=True):
        names = [donor.run for donor in shared]
        for phase in plan["phases"]:
            phase["shared_with"] = names[phase["index"]] if phase["index"] < len(names) else None
    return plans


def _jobs_to_be(workflow: Workflow) -> list[Any]:
    """The runs on a cache that is not there yet: their settings are all that is known."""
    from stage2_student.curriculum import training_range
    from stage2_student.job import StudentJob

    shard = workflow.shard
    return [
        StudentJob(
            settings=settings,
            shard=shard.name,
            cache=workflow.cache,
            cache_fingerprint="",
            documents=training_range(settings, shard.documents.limit),
            run=name,
            folder=workflow.root.run(name).path,
        )
        for name, settings in workflow.students()
    ]


def _without_tokens(job: Any) -> dict[str, Any]:
    from stage2_student.curriculum import planned_phases

    phases = planned_phases(job.settings)
    steps = sum(phase["steps"] for phase in phases)
    return {"run": job.run, "phases": phases, **dict.fromkeys(BUDGETS), "optimizer_steps": steps}


def print_students(students: list[dict[str, Any]]) -> None:
    """A row a run; what is not trained in it names the run where it is."""
    header = ("run", "active layers", "steps", "unique tokens", "total tokens", "active-layer tokens", "phases of another run")
    print_table(header, [_row(student) for student in students])


def _row(student: dict[str, Any]) -> list[str]:
    layers = " ".join(str(phase["active_layers"]) for phase in student["phases"])
    counts = [student["optimizer_steps"], *(student[name] for name in BUDGETS)]
    shown = ["?" if count is None else f"{count:,}" for count in counts]
    return [student["run"].rpartition("/")[2], layers, *shown, _shared(student)]


def _shared(student: dict[str, Any]) -> str:
    names = [phase["shared_with"] for phase in student["phases"] if phase["shared_with"]]
    if not names:
        return ""
    which = "all" if len(names) == len(student["phases"]) else ", ".join(str(index) for index in range(len(names)))
    return f"{which}: {', '.join(name.rpartition('/')[2] for name in dict.fromkeys(names))}"
