"""Two gloo processes that the command starts itself: they train what one trains, stop on a signal, and resume bit-equal; one may die."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import equal_states, finish, job, metrics, phase_state, start, train_arguments

from pipeline.contract.errors import RunError
from stage2_student.train import train

GROW: dict[str, Any] = {"curriculum": "grow", "steps": 8, "checkpoint_interval": 3, "adam_epsilon": 1e-3}
SETTINGS = {key: value for key, value in GROW.items() if key != "curriculum"}


def two(root: Path, name: str) -> Any:
    return start(train_arguments(root, name, "--curriculum", "grow", "--devices", "2", **SETTINGS))


@pytest.fixture(scope="module")
def folders(module_root) -> dict[str, Path]:
    """A run left alone and, beside it, one stopped in phase 1; then one that loses a process there; and the same on one process."""
    places = {name: module_root / f"runs/{name}" for name in ("alone", "stopped", "bereft", "single")}
    alone, stopped = two(module_root, "alone"), two(module_root, "stopped")
    wait_for_step(stopped, places["stopped"], 10)
    stopped.send_signal(signal.SIGTERM)
    assert "stopped" in one_error(finish(stopped, code=2)[1])
    finish(alone)
    bereft = two(module_root, "bereft")
    wait_for_step(bereft, places["bereft"], 12)
    os.kill(child_of_rank(bereft.pid, 1), signal.SIGKILL)
    (places["bereft"].parent / "error").write_text(one_error(finish(bereft, code=2)[1]))
    train(job(module_root, **GROW, name="single"))
    return places


def wait_for_step(process: subprocess.Popen[str], folder: Path, step: int) -> None:
    while process.poll() is None and len(metrics(folder, "train")) < step:
        time.sleep(0.005)


def one_error(err: str) -> str:
    """The only error line, which is the last."""
    assert [line for line in err.splitlines() if line.startswith("error: ")] == [err.strip().splitlines()[-1]]
    return err.strip().splitlines()[-1]


def child_of_rank(launcher: int, rank: int) -> int:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    (found,) = [child for child in children if f"\0RANK={rank}\0" in f"\0{Path(f'/proc/{child}/environ').read_text()}"]
    return int(found)


def test_a_process_that_dies_ends_the_run_in_one_line_and_is_on_record(folders):
    line = (folders["bereft"].parent / "error").read_text()
    assert "bereft: process 1 died of SIGKILL" in line and "run the same command again" in line
    (start_record,) = json.loads((folders["bereft"] / "provenance.json").read_text())
    assert start_record["ended"] in line


def test_what_is_left_of_it_goes_on_on_one_process(folders, module_root):
    """Through a universal checkpoint. Sums in another order from there on, as in the tests below."""
    result = train(job(module_root, **GROW, name="bereft"))
    assert 9 <= result["resumed_from"] < 24 and result["steps_executed"] == 24 - result["resumed_from"] and result["starts"] == 2
    records, theirs = metrics(folders["bereft"], "train"), metrics(folders["single"], "train")
    assert [(r["step"], r["optim/lr"], r["tokens"]) for r in records] == [(r["step"], r["optim/lr"], r["tokens"]) for r in theirs]
    mine, single = phase_state(folders["bereft"], 2), phase_state(folders["single"], 2)
    assert max((mine[name] - single[name]).abs().max().item() for name in mine) < 1e-4


def test_a_stopped_run_resumes_bit_equal(folders, module_root):
    folder = folders["stopped"]
    at = json.loads((folder / "checkpoints" / (folder / "checkpoints/latest").read_text().strip() / "state.json").read_text())
    steps = metrics(folder, "train")
    assert (at["world_size"], at["phase"], at["phase_step"]) == (2, steps[-1]["phase"], steps[-1]["phase_step"]) and len(steps) < 24
    result = json.loads(finish(two(module_root, "stopped"))[0])
    assert result["resumed_from"] == len(steps) and result["steps_executed"] == 24 - len(steps)
    assert all(equal_states(phase_state(folder, phase), phase_state(folders["alone"], phase)) for phase in range(3))
    mine, theirs = ([_without_timings(record) for record in metrics(path)] for path in (folder, folders["alone"]))
    assert mine == theirs


def _without_timings(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if not key.startswith("perf/")}


def test_two_processes_train_what_one_trains(folders):
    """Sums in another order, so close and not equal; an epsilon of 1e-3 keeps Adam from dividing rounding by rounding."""
    for phase in range(3):
        mine, theirs = phase_state(folders["alone"], phase), phase_state(folders["single"], phase)
        assert mine.keys() == theirs.keys()
        far = {name: (mine[name] - theirs[name]).abs().max().item() for name in mine}
        assert max(far.values()) < 1e-4, far
        assert any(not torch.equal(mine[name], theirs[name]) for name in mine)  # it really was another sum


def test_their_records_are_those_of_one(folders):
    """Field cases 38 and 44: one record a step, its rate and its loss the run's, not a rank's."""
    mine, theirs = (metrics(folders[name], "train") for name in ("alone", "single"))
    assert [(r["step"], r["optim/lr"], r["tokens"]) for r in mine] == [(r["step"], r["optim/lr"], r["tokens"]) for r in theirs]
    for key in ("train/loss", "train/kl", "train/kd", "train/ce", "optim/grad_norm"):
        assert [record[key] for record in mine] == pytest.approx([record[key] for record in theirs], rel=1e-3)
    ours, other = (metrics(folders[name], "val") for name in ("alone", "single"))
    assert [record["val/ce"] for record in ours] == pytest.approx([record["val/ce"] for record in other], rel=1e-4)


def test_more_processes_than_documents_are_refused(root, monkeypatch):
    from stage2_student import train as loop

    class Two(loop.Processes):
        def __init__(self) -> None:
            super().__init__()
            self.world_size = 2

    monkeypatch.setattr(loop, "Processes", Two)
    with pytest.raises(RunError, match="global_batch_size=1: 2 processes need a document each"):
        train(job(root, global_batch_size=1))
