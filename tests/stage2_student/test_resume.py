"""Killed in every phase and started again, a run equals one that never stopped, bit for bit (field cases 36, 37, 42)."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from runs import equal_states, finish, job, metrics, phase_state, settings, start, train_arguments

from pipeline.cli import run_command
from stage2_student.schedule import learning_rate
from stage2_student.train import train

GROW: dict[str, Any] = {"curriculum": "grow", "steps": 16, "eval_interval": 7, "checkpoint_interval": 3, "global_batch_size": 6}


def arguments(root: Path, name: str, **changes: Any) -> list[str]:
    settings = {key: value for key, value in GROW.items() if key != "curriculum"} | changes
    return train_arguments(root, name, "--curriculum", "grow", **settings)


def run(root: Path, name: str, **changes: Any) -> subprocess.Popen[str]:
    return start(arguments(root, name, **changes))


def wait_for_step(process: subprocess.Popen[str], folder: Path, phase: int, phase_step: int) -> None:
    """Until the train record of a step is there."""
    while process.poll() is None:
        records = metrics(folder, "train")
        if records and (records[-1]["phase"], records[-1]["phase_step"]) >= (phase, phase_step):
            return
        time.sleep(0.002)
    pytest.fail(f"ended before phase {phase} step {phase_step}: {process.communicate()[1][-2000:]}")


def kill(process: subprocess.Popen[str], signal_number: int = signal.SIGKILL) -> int:
    os.kill(process.pid, signal_number)
    process.communicate(timeout=120)
    return process.returncode


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
    own = {"run", "steps_executed", "resumed_from", "seconds"}
    mine, theirs = ({key: value for key, value in result.items() if key not in own} for result in results)
    assert mine == theirs


@pytest.fixture(scope="module")
def uninterrupted(module_root) -> Path:
    """In this process: that a process started for it does the same is part of the claim."""
    chosen = job(module_root, **GROW, name="uninterrupted")
    train(chosen)
    return chosen.folder


@pytest.fixture(scope="module")
def killed(module_root) -> tuple[Path, dict[str, Any]]:
    """A run killed in each of its phases, with the wrecks of killed saves put beside, started a fourth time."""
    folder = module_root / "runs/killed"
    for phase, step in ((0, 7), (1, 5), (2, 3)):
        process = run(module_root, "killed")
        wait_for_step(process, folder, phase, step)
        assert kill(process) == -signal.SIGKILL
        leave_wrecks(folder)
    assert run_command(arguments(module_root, "killed")) == 0
    return folder, json.loads((folder / "result.json").read_text())


def leave_wrecks(folder: Path) -> None:
    """What a save that was killed leaves: a temporary folder, and a folder that `latest` does not name; half a line of metrics."""
    for name in (".tmp-step-00000099", "step-00000999"):
        (folder / "checkpoints" / name / "engine").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / name / "engine/half.pt").write_bytes(b"half")
    with (folder / "metrics.jsonl").open("a") as lines:
        lines.write('{"kind": "train", "step": 9')


def test_killed_three_times_equals_never_killed(killed, uninterrupted):
    assert_same_run(killed[0], uninterrupted)


def test_the_last_start_did_only_what_was_left(killed):
    folder, result = killed
    assert 32 <= result["resumed_from"] < 48
    assert result["steps_executed"] == 48 - result["resumed_from"]
    assert len(json.loads((folder / "provenance.json").read_text())) == 4  # starts


def test_learning_rates_are_the_schedules_and_no_step_is_missing(killed):
    records = metrics(killed[0], "train")
    assert [record["step"] for record in records] == list(range(1, 49))
    expected = [learning_rate(step, settings(**GROW)) for step in range(16)] * 3
    assert [record["optim/lr"] for record in records] == expected


def test_wrecks_and_checkpoints_are_gone_when_the_run_is_finished(killed):
    assert not list(killed[0].rglob(".tmp-*")) and not (killed[0] / "checkpoints").exists()


def test_a_finished_run_started_again_does_nothing(killed, module_root, pipeline):
    folder, _ = killed
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    code, out, _ = pipeline(*arguments(module_root, "killed"))
    assert code == 0 and json.loads(out)["steps_executed"] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()} == before


def test_sigterm_saves_and_the_same_command_goes_on(module_root, uninterrupted):
    """`checkpoint_interval` is out of reach: what is resumed is what the signal saved."""
    folder = module_root / "runs/stopped"
    process = run(module_root, "stopped", checkpoint_interval=10_000)
    wait_for_step(process, folder, 1, 5)
    process.send_signal(signal.SIGTERM)
    _, err = finish(process, code=2)
    last = [line for line in err.splitlines() if line.strip()][-1]
    stopped_at = metrics(folder, "train")[-1]["step"]
    assert last.startswith("error: ") and f"after step {stopped_at} of 48" in last and err.count("error: ") == 1
    assert "Traceback" not in err
    assert (folder / "checkpoints/latest").read_text().strip() == f"step-{stopped_at:08d}"
    assert run_command(arguments(module_root, "stopped")) == 0
    result = json.loads((folder / "result.json").read_text())
    assert result["resumed_from"] == stopped_at and result["steps_executed"] == 48 - stopped_at
    assert_same_run(folder, uninterrupted)
