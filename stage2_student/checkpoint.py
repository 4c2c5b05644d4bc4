"""What a restart needs, whole or not there: temp folder, every rank's files, the state last, rename, then `latest`.

checkpoints/step-00000120/engine/      DeepSpeed's files
checkpoints/step-00000120/state.json   phase, step, processes; written last inside the folder
checkpoints/latest                     the name of the folder that counts
phase_ends/phase-0/                    the same of a phase's last step, where `keep_phase_ends` asks for it

The `keep_checkpoints` newest stay; a finished run needs none of them. Phase ends are never removed.
"""

import json
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pipeline.contract.atomic_io import TEMPORARY_PREFIX, disk_errors, publish, remove, write_json, write_text
from pipeline.contract.errors import PipelineError, RunError
from stage2_student.engine import Processes, StudentEngine
from stage2_student.reshape import universal


@dataclass(frozen=True)
class Position:
    """Where a run stands: `phase_step` updates of `phase` are done. The rest says how it was carried out.

    Another `world_size` may go on from it; another stage, precision or offload has other files and may not.
    """

    phase: int
    phase_step: int
    world_size: int
    zero: int
    dtype: str
    offload: str


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, keep: int, processes: Processes) -> None:
        self.folder, self.keep, self.processes = folder, keep, processes

    def latest(self) -> tuple[Path, Position] | None:
        """The checkpoint to resume from: the one that `latest` names, or the newest before it that is whole."""
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            position = _position(folder) if folder.name <= self._named() else None
            if position is not None:
                return folder, position
        return None

    def _named(self) -> str:
        """What `latest` says; a name before all others where it is not there."""
        pointer = self.folder / "latest"
        return pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else ""

    def clean(self) -> None:
        """Remove what killed writers left of the run: temporary folders, checkpoints without a state or newer than `latest` says."""
        if self.processes.rank == 0:
            halves = [folder for folder in self.folder.glob("step-*") if folder.name > self._named() or _position(folder) is None]
            for folder in [*halves, *self.folder.parent.glob(f"*/{TEMPORARY_PREFIX}*")]:
                remove(folder)
        self.processes.barrier()

    def save(self, engine: StudentEngine, position: Position, step: int) -> None:
        """Save after `step` updates over all phases. Every rank calls it."""
        folder = self.folder / f"step-{step:08d}"
        self._write(folder, engine, position)
        if self.processes.rank == 0:
            write_text(self.folder / "latest", f"{folder.name}\n")
            for stale in sorted(self.folder.glob("step-*"))[: -self.keep]:
                remove(stale)
        self.processes.barrier()

    def save_phase_end(self, engine: StudentEngine, position: Position) -> None:
        """Save the end of a phase, to be kept. Every rank calls it."""
        self._write(self.folder.parent / "phase_ends" / f"phase-{position.phase}", engine, position)
        self.processes.barrier()

    def _write(self, folder: Path, engine: StudentEngine, position: Position) -> None:
        temporary = folder.with_name(TEMPORARY_PREFIX + folder.name)
        if self.processes.rank == 0:
            remove(temporary)
            temporary.mkdir(parents=True)
        self.processes.barrier()
        with disk_errors(temporary):
            engine.save(temporary, {"rng": _random_state()})
        self.processes.barrier()
        if self.processes.rank == 0:
            write_json(temporary / "state.json", asdict(position))
            publish(temporary, folder)

    def restore(self, folder: Path, position: Position, engine: StudentEngine) -> None:
        """Load `folder` into a new engine; one saved by another number of processes is converted for the time. Every rank calls it.

        Raises:
            RunError: another ZeRO stage, precision or offload than it was saved with, or files that cannot be read.
        """
        here = {"zero": engine.settings.zero, "dtype": str(engine.dtype), "offload": engine.settings.offload}
        for name, value in here.items():
            saved = getattr(position, name)
            precision = f"--set precision={str(saved).removeprefix('torch.')}"
            option = {"zero": f"--zero {saved}", "dtype": precision, "offload": f"--set offload={saved}"}[name]
            if saved != value:
                raise RunError(f"{folder}: was saved with {name}={saved}, this run has {name}={value}; resume with {option}")
        same = position.world_size == self.processes.world_size
        # without ZeRO every process saved the whole
        state = engine.load(folder) if same or position.zero == 0 else self._load_converted(folder, position, engine)
        _set_random_state(state["rng"])

    def _load_converted(self, folder: Path, position: Position, engine: StudentEngine) -> dict[str, Any]:
        """Rank 0 converts and says where, or what went wrong."""
        with ExitStack() as held:
            where, problem = "", ""
            if self.processes.rank == 0:
                try:
                    where = str(held.enter_context(universal(folder, position.world_size)))
                except PipelineError as error:
                    problem = str(error)
            where, problem = self.processes.from_first((where, problem))
            if problem:
                raise RunError(problem)
            state = engine.load(Path(where), universal=True)
            self.processes.barrier()
        return state

    def discard(self) -> None:
        """Remove every checkpoint: a finished run needs none."""
        if self.processes.rank == 0:
            remove(self.folder)


def _random_state() -> dict[str, Any]:
    return {"cpu": torch.get_rng_state(), "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None}


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if state["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def _position(folder: Path) -> Position | None:
    try:
        return Position(**json.loads((folder / "state.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
