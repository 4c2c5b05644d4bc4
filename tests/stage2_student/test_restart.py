"""Starting over a run that is there: crashes under every engine, what is refused, and what a bad step leaves (field cases 36, 39, 41)."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from runs import equal_states, job, metrics, phase_state, train_arguments

from pipeline.contract.errors import RunError
from stage2_student import checkpoint
from stage2_student.job import StudentJob
from stage2_student.train import train

FREEZE: dict[str, Any] = {"curriculum": "freeze", "steps": 5, "checkpoint_interval": 2, "freeze": {"keep": ["boundary_norm"]}}


class Crash(Exception):
    """Stands for anything that ends a process between two records."""


def crash_at(phase: int, phase_step: int) -> Any:
    def on_record(record: dict[str, Any]) -> None:
        if (record["kind"], record["phase"], record["phase_step"]) == ("train", phase, phase_step):
            raise Crash

    return on_record


def values(chosen: StudentJob) -> list[dict[str, Any]]:
    return [{key: value for key, value in record.items() if not key.startswith("perf/")} for record in metrics(chosen.folder)]


@pytest.mark.parametrize(
    ("zero", "precision"), [(0, "float32"), (1, "float32"), (2, "float32"), (1, "bfloat16"), (2, "bfloat16"), (3, "bfloat16")]
)
def test_freeze_resumes_bit_equal_under_every_engine(root, zero, precision):
    """DeepSpeed#4055, #6771: also with frozen layers, and with float32 masters behind bfloat16 weights."""
    options = FREEZE | {"zero": zero, "precision": precision}
    whole, broken = job(root, **options, name="whole"), job(root, **options, name="broken")
    train(whole)
    for place in ((0, 3), (1, 4), (2, 3)):
        with pytest.raises(Crash):
            train(broken, crash_at(*place))
    result = train(broken)
    assert (result["resumed_from"], result["steps_executed"]) == (12, 3)
    assert values(broken) == values(whole)
    assert all(equal_states(phase_state(broken.folder, phase), phase_state(whole.folder, phase)) for phase in range(3))


def test_a_crash_before_the_first_checkpoint_of_a_phase_restarts_that_phase(root):
    options = FREEZE | {"checkpoint_interval": 100}
    whole, broken = job(root, **options, name="whole"), job(root, **options, name="broken")
    train(whole)
    with pytest.raises(Crash):
        train(broken, crash_at(1, 4))
    assert train(broken)["resumed_from"] == 5
    assert values(broken) == values(whole)


# --- what is refused ---


@pytest.fixture
def unfinished(root) -> StudentJob:
    chosen = job(root, steps=6, checkpoint_interval=2, name="unfinished")
    with pytest.raises(Crash):
        train(chosen, crash_at(0, 5))
    chosen.record.write("config", chosen.config())
    return chosen


def one_error(err: str) -> str:
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in err
    return line


@pytest.mark.parametrize(
    ("key", "there", "here"),
    [("zero", "1", "2"), ("learning_rate", "0.003", "0.004"), ("seed", "42", "7"), ("norm", "pre", "post"), ("data", "continue", "rewind")],
)
def test_another_setting_is_refused_by_name_with_both_values(unfinished, root, pipeline, key, there, here):
    changes = {"steps": 6, "checkpoint_interval": 2}
    more = ("--norm", here) if key == "norm" else ("--set", f"{key}={here}")
    code, out, err = pipeline(*train_arguments(root.absolute(), "unfinished", *more, **changes))
    assert code == 2 and not out
    assert f"{key}={there}" in one_error(err) and f"{key}={here}" in one_error(err) and "--set name=" in one_error(err)
    assert len(metrics(unfinished.folder, "train")) == 5


def test_resume_never_refuses_a_folder_that_is_there(unfinished, root, pipeline):
    code, _, err = pipeline(*train_arguments(root, "unfinished", "--resume", "never", steps=6))
    assert code == 2 and "--resume never" in one_error(err)
    code, out, _ = pipeline(*train_arguments(root, "unfinished", steps=6))  # auto goes on
    assert code == 0 and json.loads(out)["resumed_from"] == 4


@pytest.mark.parametrize(
    ("key", "saved", "option"),
    [
        ("offload", "optimizer", "--set offload=optimizer"),
        ("zero", 2, "--zero 2"),
        ("dtype", "torch.bfloat16", "--set precision=bfloat16"),
    ],
)
def test_a_checkpoint_of_another_shape_is_refused_by_name(unfinished, key, saved, option):
    path = unfinished.record.checkpoints / "step-00000004/state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: saved}))
    with pytest.raises(RunError, match=rf"saved with {key}={saved}, this run has {key}=.*; resume with {option}") as error:
        train(unfinished)
    assert "\n" not in str(error.value)


def test_where_the_named_checkpoint_is_not_whole_the_one_before_counts(unfinished):
    (unfinished.record.checkpoints / "step-00000004/state.json").unlink()
    assert train(unfinished)["resumed_from"] == 2


def test_a_damaged_checkpoint_is_one_line_and_its_advice_works(unfinished):
    folder = unfinished.record.checkpoints / "step-00000004"
    for path in (folder / "engine").glob("*.pt"):
        path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match=r"step-00000004: cannot be loaded .*; remove the folder to resume from the") as error:
        train(unfinished)
    assert "\n" not in str(error.value)
    shutil.rmtree(folder)
    assert train(unfinished)["resumed_from"] == 2


def test_only_the_newest_checkpoints_are_kept_and_never_more_than_asked(root):
    chosen = job(root, steps=9, checkpoint_interval=2, keep_checkpoints=2)
    with pytest.raises(Crash):
        train(chosen, crash_at(0, 9))
    kept = sorted(path.name for path in chosen.record.checkpoints.glob("step-*"))
    assert kept == ["step-00000006", "step-00000008"]
    train(chosen)
    assert not chosen.record.checkpoints.exists()  # a finished run needs none


def test_a_leftover_of_a_later_step_does_not_push_out_the_checkpoint_that_counts(root):
    chosen = job(root, steps=6, checkpoint_interval=2, keep_checkpoints=1)
    with pytest.raises(Crash):
        train(chosen, crash_at(0, 3))
    (chosen.record.checkpoints / "step-00000099").mkdir()
    with pytest.raises(Crash):
        train(chosen, crash_at(0, 5))
    assert train(chosen)["resumed_from"] == 4


def test_a_save_that_dies_half_way_leaves_the_one_before(root, monkeypatch):
    whole, broken = (job(root, steps=6, checkpoint_interval=2, name=name) for name in ("whole", "broken"))
    train(whole)
    publish = checkpoint.publish
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "publish", lambda temporary, path: dies_at(path, "step-00000004", temporary, publish))
        with pytest.raises(Crash):
            train(broken)
    assert (broken.record.checkpoints / ".tmp-step-00000004").is_dir()
    assert train(broken)["resumed_from"] == 2
    assert not list(broken.record.checkpoints.glob(".tmp-*"))
    assert equal_states(phase_state(broken.folder, 0), phase_state(whole.folder, 0))


def dies_at(path: Path, name: str, temporary: Path, publish: Any) -> None:
    if path.name == name:
        raise Crash
    publish(temporary, path)


# --- not finite ---


def test_gradients_that_are_not_finite_end_the_run_and_leave_the_checkpoint(root, pipeline):
    """Evaluations between a bad update and the step that meets it are no checkpoint's business, nor may they leave what is not JSON."""
    root, folder = root.absolute(), root.absolute() / "runs/diverges"
    arguments = train_arguments(root, "diverges", steps=8, checkpoint_interval=1, eval_interval=9, learning_rate=1e30)
    code, out, err = pipeline(*arguments, "--set", "nonfinite_limit=2")
    assert code == 2 and not out
    steps, guards = len(metrics(folder, "train")), metrics(folder, "guard")
    assert steps >= 1 and [guard["step"] for guard in guards if guard["guard"] == "nonfinite"] == [steps + 1, steps + 2, steps + 3]
    line = one_error(err)
    assert f"at step {steps + 3} " in line and "nonfinite_limit=2" in line and "--set nonfinite_limit=6" in line
    assert not (folder / "phases/phase-0").exists() and not (folder / "result.json").exists()
    named = (folder / "checkpoints/latest").read_text().strip()
    assert named == f"step-{steps:08d}" and (folder / "checkpoints" / named / "state.json").is_file()
    for record in (folder / "metrics.jsonl").read_text().splitlines():
        json.loads(record, parse_constant=pytest.fail)


def test_a_validation_loss_that_is_not_finite_ends_the_run_too(root):
    """After a phase's last update no training step is left to meet it, and the phase must not count as finished."""
    chosen = job(root, steps=1, learning_rate=1e30)
    with pytest.raises(RunError, match=r"validation .* at step 1"):
        train(chosen)
    assert not chosen.record.phase(0).exists() and not (chosen.folder / "result.json").exists()
    assert [record["step"] for record in metrics(chosen.folder, "val")] == [0]
