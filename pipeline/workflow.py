"""An experiment as a graph of stages: one cache, its students, one report. What is current, what must run, and why.

Where the shard's teacher is one of one's own, its training is a stage before these.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.contract.errors import ManifestError, PipelineError
from pipeline.contract.hashing import hash_json
from pipeline.contract.layout import ArtifactRoot, trained_on
from pipeline.contract.manifest.experiment import ExperimentManifest
from pipeline.contract.manifest.find import student_settings
from pipeline.contract.manifest.overrides import merge, nested
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import RunFolder
from pipeline.contract.store import Store
from pipeline.shard_choice import capture_settings

State = Literal["current", "stale", "missing"]


@dataclass(frozen=True)
class Stage:
    """One node: what it is called, where it stands, and why."""

    name: str
    state: State
    reason: str

    def as_json(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Workflow:
    """An experiment bound to a root and to `--set` values."""

    experiment: ExperimentManifest
    root: ArtifactRoot
    shard_overrides: dict[str, Any] = field(default_factory=dict)
    student_overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def shard(self) -> ShardManifest:
        return capture_settings(self.experiment.shard, self.shard_overrides, self.root)[0]

    @property
    def cache(self) -> Store:
        return self.root.cache(self.shard.name)

    def layers(self) -> list[dict[str, Any]]:
        """The settings of each student: experiment, then run, then `--set`."""
        return [merge(layer, nested(self.student_overrides)) for layer in self.experiment.layers]

    def students(self) -> list[tuple[str, StudentManifest]]:
        """Name and settings of each student."""
        shard = self.shard
        settings = [student_settings(shard, layer, source=self.experiment.name) for layer in self.layers()]
        named = [(self.run_name(s, label), s) for s, label in zip(settings, self.experiment.labels, strict=True)]
        for name, student in named:
            if sum(other == name for other, _ in named) > 1:
                label = f"write `label: {name}` instead of `name:`, to which seed and learning rate are added"
                advice = label if student.name else "give each its own `label:` in the experiment's runs"
                raise ManifestError(f"{self.experiment.name}: two runs are called {name}; {advice}")
        return named

    def run_name(self, settings: StudentManifest, label: str | None) -> str:
        """The learning rate is in the name only where the experiment lists several."""
        what = label or f"{settings.norm}-{settings.curriculum}"
        rate = f"-lr{settings.learning_rate}" if len(self.experiment.learning_rates) > 1 else ""
        return settings.name or f"{self.experiment.name}/{what}{rate}-seed{settings.seed}"

    def runs(self) -> list[RunFolder]:
        return [self.root.run(name) for name, _ in self.students()]

    def stages(self) -> list[Stage]:
        """Every stage with its state; a stage is stale when what it was made from has changed."""
        cache = self.cache_stage()
        students = [self.student_stage(name, settings, cache) for name, settings in self.students()]
        return [cache, *students, self.report_stage(students)]

    def teacher_stage(self, cache: Stage) -> Stage | None:
        """The training of a teacher of one's own, None where the teacher comes from elsewhere. A whole `cache` needs none."""
        from stage1_teacher.training.job import TeacherJob, difference

        trained = trained_on(Path(self.shard.teacher.model))
        if trained is None or trained[0] != str(self.root.path):
            return None
        name, label = trained[1], f"teacher {trained[1]}"
        job = TeacherJob(self.shard, self.root.teacher(name))
        if not job.model.is_dir():
            whole = cache.state == "current"
            return Stage(label, "current", "not here; its cache is whole") if whole else Stage(label, "missing", "not trained")
        changed = difference(job, job.config()) if name == self.shard.name else None
        return Stage(label, "stale", changed) if changed else Stage(label, "current", "trained as the shard says")

    def cache_stage(self) -> Stage:
        from pipeline.contract.logit_cache.index import has_manifest
        from stage1_teacher.capture import CaptureRequest, finished_manifest

        name = f"cache {self.shard.name}"
        if not has_manifest(self.cache):
            return Stage(name, "missing", "no finished cache")
        try:
            whole = finished_manifest(
                CaptureRequest(self.shard, self.cache, ["train", "validation"], overrides=self.shard_overrides), deep=False
            )
        except PipelineError as error:
            return Stage(name, "stale", str(error))
        return (
            Stage(name, "current", f"fingerprint {whole.fingerprint}")
            if whole
            else Stage(name, "stale", "not whole for this range of documents")
        )

    def student_stage(self, name: str, settings: StudentManifest, cache: Stage) -> Stage:
        from stage2_student.job import run_identity

        folder, label = self.root.run(name), f"student {name}"
        config = folder.read("config")
        if config is None:
            return Stage(label, "missing", "not trained")
        if cache.state != "current":
            return Stage(label, "stale", f"its cache is {cache.state}")
        wanted = {**config, **self.identity_parts(settings), "settings": settings.model_dump()}
        ours, theirs = run_identity(wanted), run_identity(config)
        changed = [key for key in ours if ours[key] != theirs.get(key)]
        if changed:
            return Stage(label, "stale", f"{changed[0]} was {theirs.get(changed[0])}, is {ours[changed[0]]}")
        if folder.read("result") is None:
            return Stage(label, "missing", "not finished; goes on from its last checkpoint")
        return Stage(label, "current", "trained with these settings on this cache")

    def identity_parts(self, settings: StudentManifest) -> dict[str, Any]:
        """What a run takes from a finished cache."""
        from pipeline.contract.logit_cache.index import read_manifest
        from stage2_student.curriculum import training_range

        manifest = read_manifest(self.cache)
        documents = min(self.shard.documents.limit, manifest.splits["train"].documents)
        return {"cache_fingerprint": manifest.fingerprint, "documents": training_range(settings, documents)}

    def report_stage(self, students: list[Stage]) -> Stage:
        name = f"report {self.experiment.name}"
        behind = [stage for stage in students if stage.state != "current"]
        if behind:
            return Stage(name, "stale", f"{behind[0].name} is {behind[0].state}")
        marker = self.root.report(self.experiment.name) / "inputs.txt"
        if not marker.is_file():
            return Stage(name, "missing", "not written")
        current = marker.read_text(encoding="utf-8").strip() == self.report_inputs()
        return Stage(name, "current", "written from these results") if current else Stage(name, "stale", "a student's result has changed")

    def report_inputs(self) -> str:
        """One hash of every result that the report shows."""
        return hash_json([run.read("result") for run in self.runs()])
