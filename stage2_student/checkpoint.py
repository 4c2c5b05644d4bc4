"""What a restart needs, whole or not there: temp folder, every rank's files, the state last, rename, then `latest`.

checkpoints/step-00000120/engine/      DeepSpeed's files
checkpoints/step-00000120/state.json   phase, step, processes; written last inside the folder
checkpoints/latest                     the name of the folder that counts
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, disk_errors, publish, remove, write_json, write_text
from pipeline.contract.errors import RunError
from stage2_student.engine import Processes, StudentEngine


@dataclass(frozen=True)
class Position:
    """Where a run stands: `phase_step` updates of `phase` are done. The rest pins what may not change on resume."""

    phase: int
    phase_step: int
    world_size: int
    zero: int
    dtype: str


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self.folder, self.keep, self.processes = folder, keep, processes

    def latest(self) -> tuple[Path, Position] | None:
        """The checkpoint to resume from: the one that `latest` names, or the newest before it that is whole."""
        pointer = self.folder / "latest"
        if not pointer.is_file():
            return None
        named = pointer.read_text(encoding="utf-8").strip()
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            position = _position(folder) if folder.name <= named else None
            if position is not None:
                return folder, position
        return None

    def save(self, engine: StudentEngine, position: Position, step: int) -> None:
        """Save after `step` updates over all phases. Every rank calls it."""
        temporary = self.folder / f"{TEMPORARY_PREFIX}step-{step:08d}"
        if self.processes.rank == 0:
            remove(temporary)
            temporary.mkdir(parents=True)
        self.processes.barrier()
        with disk_errors(temporary):
            engine.save(temporary, {"rng": torch.get_rng_state()})
        self.processes.barrier()
        if self.processes.rank == 0:
            write_json(temporary / "state.json", asdict(position))
            publish(temporary, self.folder / f"step-{step:08d}")
            write_text(self.folder / "latest", f"step-{step:08d}\n")
            # a folder of a later step is what a killed save left: it goes first
            saved = sorted(self.folder.glob("step-*"), key=lambda path: (path.name <= f"step-{step:08d}", path.name))
            for stale in saved[: -self.keep]:
                remove(stale)
        self.processes.barrier()

    def restore(self, folder: Path, position: Position, engine: StudentEngine) -> None:
        """Load `folder` into a new engine.

        Raises:
            RunError: other processes, ZeRO stage or precision than it was saved with.
        """
        here = {"world_size": self.processes.world_size, "zero": engine.settings.zero, "dtype": str(engine.dtype)}
        for name, value in here.items():
            saved = getattr(position, name)
            precision = f"--set precision={str(saved).removeprefix('torch.')}"
            option = {"world_size": f"--devices {saved}", "zero": f"--zero {saved}", "dtype": precision}[name]
            if saved != value:
                raise RunError(f"{folder}: was saved with {name}={saved}, this run has {name}={value}; resume with {option}")
        torch.set_rng_state(engine.load(folder)["rng"])

    def discard(self) -> None:
        """Remove every checkpoint: a finished run needs none."""
        if self.processes.rank == 0:
            remove(self.folder)


def _position(folder: Path) -> Position | None:
    try:
        return Position(**json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
