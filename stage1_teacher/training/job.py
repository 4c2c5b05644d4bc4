"""One teacher's training as data: what decides its weights, where it is recorded, and whether it is done.

config.json       what decides the weights, by dotted key; written before the first step
provenance.json   versions and machine, one entry for each time the training was started
metrics.jsonl     one JSON object a line: steps and evaluations, in order
tokenizer/        the byte-pair vocabulary, made first
checkpoint.pt     model, optimizer and step of the newest checkpoint; gone when the teacher is finished
model/            the teacher, a Hugging Face folder
result.json       written last
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.contract.errors import TeacherError
from pipeline.contract.fingerprint import declared_identity
from pipeline.contract.layout import trained_model
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.manifest.teacher_training import TeacherTraining
from pipeline.contract.run_record import RunFolder

# settings that say how a training is carried out; changing them is not another teacher
_NOT_IDENTITY = {"micro_batch_tokens", "eval_interval", "checkpoint_interval"}
# where the documents are; their content is hashed
_NAMES = {"documents.source", "documents.files", "documents.packages"}


@dataclass(frozen=True)
class TeacherJob:
    """A teacher to train on `shard`, and its folder."""

    shard: ShardManifest
    record: RunFolder

    @property
    def training(self) -> TeacherTraining:
        return self.shard.teacher.training or TeacherTraining()

    @property
    def model(self) -> Path:
        return trained_model(self.record)

    @property
    def tokenizer(self) -> Path:
        return self.record.path / "tokenizer"

    @property
    def checkpoint(self) -> Path:
        return self.record.path / "checkpoint.pt"

    def config(self) -> dict[str, Any]:
        """What decides the weights, but for the documents' content."""
        declared = declared_identity(self.shard)
        documents = {key: value for key, value in declared.items() if key.startswith("documents.") and key not in _NAMES}
        training = {f"teacher.training.{key}": value for key, value in self.training.model_dump().items() if key not in _NOT_IDENTITY}
        limit = {"documents.limit": self.shard.documents.limit}
        return {**training, **documents, **limit, "cache.threads": self.shard.cache.threads}


def difference(job: TeacherJob, config: dict[str, Any]) -> str | None:
    """The first setting in which the folder's training differs from `config`, in a few words; None where none is, or nothing there.

    A finished teacher stays when the range of documents is extended: validation documents are the same, and unseen.
    """
    recorded = job.record.read("config") or {}
    passed_over = {"documents.limit"} if job.record.read("result") else set()
    for key in recorded.keys() & config.keys() - passed_over:
        if recorded[key] != config[key]:
            return f"{key} was {_brief(recorded[key])}, is {_brief(config[key])}"
    return None


def finished_teacher(job: TeacherJob, config: dict[str, Any]) -> dict[str, Any] | None:
    """The result of the same training, if it is there already. An unfinished one is left to be resumed.

    Raises:
        TeacherError: the folder holds another training; caches may be made from it.
    """
    changed = difference(job, config)
    if changed:
        raise TeacherError(
            f"{job.record.path}: holds a teacher whose {changed}; give the same settings, or move the folder away to train another one"
        )
    return job.record.read("result") if job.model.is_dir() else None


def _brief(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:60]}..."
