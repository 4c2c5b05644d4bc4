"""Killed in every phase and started again, a run equals one that never stopped, bit for bit (field cases 36, 37, 42)."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from kill_worker import GROW
from runs import equal_states, finish, job, metrics, phase_state, settings, start, train_arguments

from pipeline.cli import run_command
from pipeline.contract.schedule import learning_rate
from stage2_student.train import train

PROCESSES = pytest.mark.parametrize("processes", [1, 2])


def trace(folder: Path) -> list[tuple[Any, ...]]:
    """What the records say, timings left out."""
    records = metrics(folder)
    return [tuple(item for item in record.items() if not item[0].startswith("perf/")) for record in records]


def assert_same_run(folder: Path, uninterrupted: Path) -> None:
    places = [(record["kind"], record["phase"], record["phase_step"]) for record in metrics(folder)]
    assert len(set(places)) == len(places)
    assert trace(folder) == trace(uninterrupted)
    for phase in range(3):
        assert equal_states(phase_state(folder, phase), phase_state(uninterrupted, phase))
    results = [json.loads((path / "result.json").read_text()) for path in (folder, uninterrupted)]
    own = {"run", "steps_executed", "resumed_from", "seconds", "starts"}
    mine, theirs = ({key: value for key, value in result.items() if key not in own} for result in results)
    assert mine == theirs


# --- killed ---


@pytest.fixture(scope="module")
def runs(module_root) -> Path:
    """Where `whole-N` and `killed-N` are, of N processes."""
    finish(start([str(module_root)], module="kill_worker"))
    return module_root / "runs"


@PROCESSES
def test_killed_three_times_equals_never_killed(runs, processes):
    assert_same_run(runs / f"killed-{processes}", runs / f"whole-{processes}")


def saved_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor in the engine's files of all phase ends: weights, masters, moments, random state."""
    found: dict[str, torch.Tensor] = {}

    def collect(value: Any, name: str) -> None:
        if torch.is_tensor(value):
            found[name] = value
        elif isinstance(value, dict | list | tuple):
            for key, each in value.items() if isinstance(value, dict) else enumerate(value):
                collect(each, f"{name}/{key}")

    for path in sorted((folder / "phase_ends").glob("phase-*/engine/**/*.pt")):
        collect(torch.load(path, weights_only=False), str(path.relative_to(folder)))
    return found


@PROCESSES
def test_every_tensor_of_the_optimizer_is_bit_equal_at_every_phases_end(runs, processes):
    mine, theirs = saved_tensors(runs / f"killed-{processes}"), saved_tensors(runs / f"whole-{processes}")
    moments = [name for name in mine if "exp_avg" in name]
    assert len(moments) == 3 * 2 * processes and all(mine[name].any() for name in moments)
    assert equal_states(mine, theirs) and len(mine) > 80


@PROCESSES
def test_each_start_goes_on_and_does_only_what_is_left(runs, processes):
    folder = runs / f"killed-{processes}"
    starts = json.loads((folder / "provenance.json").read_text())
    assert [each["resumed_from"] for each in starts] == [0, 3, 11, 19]
    assert [each["ended"] for each in starts][-1] == "finished" and all(each["ended"] != "finished" for each in starts[:-1])
    result = json.loads((folder / "result.json").read_text())
    assert (result["resumed_from"], result["steps_executed"], result["starts"]) == (19, 5, 4)


@PROCESSES
def test_learning_rates_are_the_schedules_and_no_step_is_missing(runs, processes):
    records = metrics(runs / f"killed-{processes}", "train")
    assert [record["step"] for record in records] == list(range(1, 25))
    expected = [learning_rate(step, settings(**GROW)) for step in range(8)] * 3
    assert [record["optim/lr"] for record in records] == expected


@PROCESSES
def test_wrecks_and_checkpoints_are_gone_when_the_run_is_finished(runs, processes):
    folder = runs / f"killed-{processes}"
    assert not list(folder.rglob(".tmp-*")) and not (folder / "checkpoints").exists()
    assert sorted(path.name for path in (folder / "phase_ends").iterdir()) == ["phase-0", "phase-1", "phase-2"]


def test_one_process_and_another_do_the_same(runs, module_root):
    """That a process started for it does what this one does is part of the claim."""
    here = job(module_root, **GROW, name="here")
    train(here)
    assert_same_run(here.folder, runs / "whole-1")


# --- stopped ---


def arguments(root: Path, name: str, **changes: Any) -> list[str]:
    options = {key: value for key, value in GROW.items() if key not in ("curriculum", "norm", "keep_phase_ends")} | changes
    return train_arguments(root, name, "--curriculum", "grow", "--norm", "post", **options)


def wait_for_step(process: subprocess.Popen[str], folder: Path, phase: int, phase_step: int) -> None:
    """Until the train record of a step is there."""
    while process.poll() is None:
        records = metrics(folder, "train")
        if records and (records[-1]["phase"], records[-1]["phase_step"]) >= (phase, phase_step):
            return
        time.sleep(0.002)
    pytest.fail(f"ended before phase {phase} step {phase_step}: {process.communicate()[1][-2000:]}")


def test_sigterm_saves_and_the_same_command_goes_on(runs, module_root, pipeline):
    """`checkpoint_interval` is out of reach: what is resumed is what the signal saved."""
    folder = module_root / "runs/stopped"
    process = start(arguments(module_root, "stopped", checkpoint_interval=10_000))
    wait_for_step(process, folder, 1, 2)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, code=2)
    last = [line for line in err.splitlines() if line.strip()][-1]
    stopped_at = metrics(folder, "train")[-1]["step"]
    assert last.startswith("error: ") and f"after step {stopped_at} of 24" in last and err.count("error: ") == 1
    assert "Traceback" not in err
    assert (folder / "checkpoints/latest").read_text().strip() == f"step-{stopped_at:08d}"
    assert run_command(arguments(module_root.absolute(), "stopped")) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["resumed_from"] == stopped_at and result["steps_executed"] == 24 - stopped_at
    ends = [each["ended"] for each in json.loads((folder / "provenance.json").read_text())]
    assert "stopped by a signal" in ends[0] and ends[1] == "finished"
    assert_same_run(folder, runs / "whole-1")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    code, out, _ = pipeline(*arguments(module_root.absolute(), "stopped"))  # finished: there is nothing to do
    assert code == 0 and json.loads(out)["steps_executed"] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before
