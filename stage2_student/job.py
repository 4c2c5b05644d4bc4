"""One student run as data: what a launcher hands to every process."""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pipeline.contract.atomic_io import only_writer
from pipeline.contract.errors import RunError
from pipeline.contract.hashing import hash_json
from pipeline.contract.manifest.strict import parse
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import RunFolder
from pipeline.contract.store import Store, open_store

# settings that say how a run is carried out; changing them is not another run
_NOT_IDENTITY = {"name", "keep_checkpoints", "keep_phase_ends", "checkpoint_interval", "eval_interval"}
_NOT_IDENTITY |= {
    "micro_batch_tokens",
    "attention",
    "micro_batch_overhead",
    "gradient_checkpointing",
    "loader_workers",
    "offload",
    "nonfinite_limit",
}
_NOT_IDENTITY |= {"probe_documents", "gradient_norms_interval", "snapshot_interval", "tensorboard", "loss_kernels"}


@dataclass(frozen=True)
class StudentJob:
    """A run: settings, the cache it reads, the folder it writes. `documents` is the training range, from document 0 on."""

    settings: StudentManifest
    shard: str
    cache: Store
    cache_fingerprint: str
    documents: int
    run: str
    folder: Path
    resume: Literal["auto", "never"] = "auto"
    teacher: str = ""

    @property
    def record(self) -> RunFolder:
        return RunFolder(self.folder)

    def config(self) -> dict[str, Any]:
        """What `config.json` holds."""
        return {
            "run": self.run,
            "shard": self.shard,
            "teacher": self.teacher,
            "cache_fingerprint": self.cache_fingerprint,
            "documents": self.documents,
            "settings": self.settings.model_dump(),
        }

    def write(self, path: Path) -> None:
        path.write_text(
            json.dumps({**self.config(), "cache": str(self.cache), "folder": str(self.folder), "resume": self.resume}), encoding="utf-8"
        )

    @classmethod
    def read(cls, path: Path) -> "StudentJob":
        data = json.loads(path.read_text(encoding="utf-8"))
        settings = parse(StudentManifest, data.pop("settings"), str(path))
        return cls(settings=settings, cache=open_store(data.pop("cache")), folder=Path(data.pop("folder")), **data)


def run_identity(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a run's config that makes it this run, flat."""
    settings = {key: value for key, value in config["settings"].items() if key not in _NOT_IDENTITY}
    return {"cache_fingerprint": config["cache_fingerprint"], "documents": config["documents"], **settings}


def run_fingerprint(config: dict[str, Any]) -> str:
    """One hash of what makes a run this run."""
    return hash_json(run_identity(config))


def finished_result(job: StudentJob) -> dict[str, Any] | None:
    """The result of the same run, if it is there already. An unfinished one is left to be resumed.

    Raises:
        RunError: the folder holds another run, or one that `--resume never` may not touch.
    """
    config = job.record.read("config")
    if config is None:
        return None
    ours, theirs = run_identity(job.config()), run_identity(config)
    for key in ours:
        if ours[key] != theirs.get(key):
            raise RunError(
                f"{job.folder}: holds a run with {key}={theirs.get(key)}, this one has {key}={ours[key]}; "
                "give the run another name with --set name=NAME, or remove the folder"
            )
    if job.resume == "never":
        raise RunError(f"{job.folder}: exists and --resume never was given; give another name with --set name=NAME, or use --resume auto")
    return job.record.read("result")


def set_aside(folder: RunFolder) -> Path:
    """Move a run out of the way of one with other settings; nothing of it is lost. Returns where it is now."""
    first = folder.path.with_name(f"{folder.path.name}.{run_fingerprint(folder.read('config'))[:8]}")
    copies = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    aside = next(path for path in itertools.chain([first], copies) if not path.exists())
    with only_writer(folder.path):
        folder.path.rename(aside)
    return aside
