"""Runs that are really killed, on one process and on two: `python kill_worker.py ROOT`.

Every start is forked from this process, which has imported everything and used nothing, so that a death costs a second.
"""

import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NamedTuple

import deepspeed  # noqa: F401, before the forks
import torch
from runs import job

from stage2_student.engine import StudentEngine
from stage2_student.train import train

GROW: dict[str, Any] = {
    "curriculum": "grow",
    "norm": "post",
    "steps": 8,
    "eval_interval": 5,
    "checkpoint_interval": 3,
    "keep_phase_ends": True,
    "micro_batch_tokens": 40,
}


class Kill(NamedTuple):
    """Where a process kills itself: rank, kind of place, and how many whole steps or files it gets to do before."""

    rank: int
    place: str
    after: int


KILLS = [Kill(-1, "accumulation", 4), Kill(0, "save", 6), Kill(-1, "update", 9)]
"""In phase 0 after two micro-batches of the fifth step, the last checkpoint being at 3; in phase 1, half-way through a file of its second
checkpoint, resumed from 3; in phase 2 between an update and its record, resumed from 11."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill: Kill) -> None:
    """Make this process die where `kill` says."""
    done, backward, step, save = [0], StudentEngine.backward, StudentEngine.step, torch.save

    def counted_backward(self: StudentEngine, loss: torch.Tensor, *, last: bool) -> None:
        backward(self, loss, last=last)
        if kill.place == "accumulation" and done[0] == kill.after and not last:
            die()

    def counted_step(self: StudentEngine, learning_rate: float) -> float:
        norm = step(self, learning_rate)
        done[0] += 1
        if kill.place == "update" and done[0] == kill.after:
            die()
        return norm

    files = [0]

    def counted_save(value: Any, path: Any, *more: Any, **options: Any) -> None:
        save(value, path, *more, **options)
        files[0] += 1
        if kill.place == "save" and files[0] > kill.after:
            os.truncate(path, os.path.getsize(path) // 2)
            die()

    StudentEngine.backward, StudentEngine.step, torch.save = counted_backward, counted_step, counted_save  # type: ignore[method-assign]


def start(root: Path, name: str, processes: int, kill: Kill | None = None, **changes: Any) -> list[int]:
    """Run or resume on forked processes; how each ended: 0, 1, or minus the signal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = [_fork(root, name, rank, processes, port, kill, changes) for rank in range(processes)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def _fork(root: Path, name: str, rank: int, processes: int, port: int, kill: Kill | None, changes: dict[str, Any]) -> int:
    child = os.fork()
    if child:
        return child
    try:
        signal.alarm(300)  # no orphan outlives a test
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        os.environ.update({key: str(value) for key, value in places.items()})
        torch.set_num_threads(1)
        if kill is not None and kill.rank % processes == rank:
            arm(kill)
        train(job(root, **GROW | changes, name=name))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def leave_wrecks(folder: Path) -> None:
    """What a save that was killed leaves: a temporary folder, and a folder that `latest` does not name; half a line of metrics."""
    for name in (".tmp-step-00000099", "step-00000999"):
        (folder / "checkpoints" / name / "engine").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / name / "engine/half.pt").write_bytes(b"half")
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "train", "step": 9')


def main(root: Path) -> None:
    for processes in (1, 2):
        assert start(root, f"whole-{processes}", processes) == [0] * processes
        for kill in KILLS:
            ended = start(root, f"killed-{processes}", processes, kill)
            assert ended[kill.rank % processes] == -signal.SIGKILL, (kill, ended)
            assert all(code == 1 for rank, code in enumerate(ended) if rank != kill.rank % processes), (kill, ended)
            leave_wrecks(root / f"runs/killed-{processes}")
        assert start(root, f"killed-{processes}", processes) == [0] * processes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
