"""Copies of metrics.jsonl: TensorBoard's files hold what it holds, after a resume too; a tracker that fails costs a run nothing."""

import json
import os
import re
import sqlite3
import subprocess
import sys
from importlib.util import find_spec

import pytest
from runs import CHECKOUT, environment, job, metrics

from pipeline.cli import run_command
from pipeline.contract.errors import RunError
from pipeline.contract.run_record import RunFolder
from stage2_student.launch import in_process
from stage2_student.trackers import TensorBoard, export, scalars


def record(step: int, loss: float, kind: str = "train", **more) -> dict:
    return {"kind": kind, "step": step, "phase": 0, "phase_step": step, "train/loss": loss, "tokens": 7, **more}


def shown(folder) -> dict[str, dict[int, float]]:
    """What TensorBoard shows: [name][step]."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: {event.step: event.value for event in read.Scalars(name)} for name in read.Tags()["scalars"]}


def expected(folder) -> dict[str, dict[int, float]]:
    wanted: dict[str, dict[int, float]] = {}
    for each in metrics(folder):
        for name, value in scalars(each).items():
            wanted.setdefault(name, {})[each["step"]] = pytest.approx(value, rel=1e-6)
    return wanted


@pytest.fixture
def quiet():
    """On a new run, TensorBoard is on by default; nothing else is asked for."""
    return {"curriculum": "joint", "probe_documents": 0}


def test_a_run_writes_what_metrics_jsonl_holds(root, quiet, capsys):
    chosen = job(root, name="shown", **quiet)
    in_process(chosen)
    found = shown(chosen.folder)
    assert found == expected(chosen.folder)
    assert {"train/loss", "val/ce", "optim/lr", "perf/tokens_per_second", "perf/padding_efficiency", "optim/clip_fraction"} <= found.keys()
    assert not (job(root, name="without", tensorboard=False).folder / "tensorboard").exists()


def test_without_it_there_are_no_files(root, quiet):
    chosen = job(root, name="without", tensorboard=False, **quiet)
    in_process(chosen)
    assert not (chosen.folder / "tensorboard").exists()


def test_a_resumed_run_takes_back_what_it_does_again(tmp_path):
    folder = RunFolder(tmp_path)
    first = TensorBoard(folder)
    for step in range(1, 6):
        folder.append_metrics(record(step, float(step)))
        first(record(step, float(step)))
    folder.keep_metrics([record(step, float(step)) for step in (1, 2, 3)])  # killed after 5, the checkpoint is of 3
    second = TensorBoard(folder)
    for step in (4, 5, 6):
        folder.append_metrics(record(step, 10.0 * step))
        second(record(step, 10.0 * step))
    assert shown(tmp_path)["train/loss"] == {1: 1, 2: 2, 3: 3, 4: 40, 5: 50, 6: 60}


def test_a_run_new_to_it_is_told_whole(tmp_path):
    """Phases taken over from another run came before its first record."""
    folder = RunFolder(tmp_path)
    for step in (1, 2, 3):
        folder.append_metrics(record(step, float(step)))
    TensorBoard(folder)(record(3, 3.0))
    assert shown(tmp_path) == expected(tmp_path)


def test_a_failing_tracker_costs_the_run_nothing(root, quiet, capsys):
    chosen = job(root, name="broken", **quiet)
    chosen.folder.mkdir(parents=True)
    (chosen.folder / "tensorboard").write_text("a file stands where the folder would be")
    assert in_process(chosen)["optimizer_steps"] == 4
    assert capsys.readouterr().err.count("note: TensorBoard is told no more") == 1


def test_only_numbers_with_a_slash_are_sent():
    sent = scalars(record(1, 2.0, **{"optim/clipped": True, "probe/ce": None, "event": "append", "a/b": "text"}))
    assert sent == {"train/loss": 2.0, "optim/clipped": 1.0}


def test_the_command_sends_a_finished_run_again(root, quiet, capsys):
    chosen = job(root, name="again", tensorboard=False, **quiet)
    in_process(chosen)
    capsys.readouterr()
    assert run_command(["track", "again", "--root", str(root), "--follow", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == len(metrics(chosen.folder))
    assert shown(chosen.folder) == expected(chosen.folder)
    assert run_command(["track", "nowhere", "--root", str(root)]) == 2


def test_what_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr("stage2_student.trackers.find_spec", lambda name: None)
    with pytest.raises(RunError, match="wandb is not installed; pip install wandb"):
        export(RunFolder(tmp_path), "wandb")


def exported(folder, to, **variables) -> None:
    """Three records to a tracker, from a process of its own: some start a service beside it."""
    record_of = RunFolder(folder)
    record_of.write("config", {"run": "paper/pre-joint", "settings": {"seed": 42}})
    for step in (1, 2, 3):
        record_of.append_metrics(record(step, float(step)))
    record_of.write("result", {})
    imports = "from pathlib import Path; from pipeline.contract.run_record import RunFolder; from stage2_student.trackers import export"
    code = f"{imports}; print(export(RunFolder(Path({str(folder)!r})), {to!r}))"
    clean = environment() | {"PYTHONPATH": os.pathsep.join([str(CHECKOUT), *sys.path])} | variables
    done = subprocess.run([sys.executable, "-c", code], env=clean, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and re.search(r"^3$", done.stdout, re.M), done.stdout + done.stderr[-2000:]


@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_offline(tmp_path):
    exported(tmp_path, "wandb", WANDB_SILENT="true")
    (kept,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/loss" in kept.read_bytes()


@pytest.mark.skipif(find_spec("trackio") is None, reason="trackio is not installed")
def test_trackio_on_this_machine(tmp_path):
    exported(tmp_path, "trackio", TRACKIO_DIR=str(tmp_path / "trackio"))
    with sqlite3.connect(tmp_path / "trackio/paper.db") as kept:
        rows = kept.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(run, step, json.loads(metrics)) for run, step, metrics in rows] == [
        ("paper/pre-joint", step, {"train/loss": float(step)}) for step in (1, 2, 3)
    ]
