"""Every state a run can be in, told from its folder; a process that was killed is known to be gone."""

import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from watched_runs import STEPS, advance, begin, end, guard_record, settings, train_record, val_record

from pipeline.watch.run_state import QUIET_SECONDS, RunWatch, seconds_left, standing

ROOT = Path(__file__).parents[2]
ANOTHER_MACHINE = "0123456789abcdef-1-1"


def look(folder, planned=None):
    return RunWatch("exp/post-grow-seed42", folder, planned).look()


def test_a_run_goes_from_waiting_to_done(tmp_path):
    from pipeline.contract.run_record import RunFolder

    folder = RunFolder(tmp_path / "run")
    watch = RunWatch("exp/post-grow-seed42", folder, settings())
    waiting = watch.look()
    assert (waiting.state, waiting.phase, waiting.phases, waiting.step, waiting.steps) == ("waiting", None, 3, 0, 3 * STEPS)
    assert waiting.last_record_age is None and waiting.loss is None

    begin(folder.path)
    assert watch.look().state == "running"
    folder.append_metrics(val_record(0, 0, 9.0))
    advance(folder, 1, STEPS + 10)
    running = watch.look()
    assert (running.state, running.phase, running.step, running.active_layers) == ("running", 1, STEPS + 10, 4)
    assert (running.val_ce, running.val_kl, running.clip_fraction) == (9.0, 8.0, 0.25)
    assert running.tokens_per_second == pytest.approx(200) and running.last_record_age < 60
    assert running.seconds_left == pytest.approx(0.5 * (STEPS - 10 + STEPS * 3 / 2))

    end(folder, "finished")
    folder.write("result", {"val_ce": 2.0})
    done = watch.look()
    assert done.state == "done" and done.seconds_left is None and done.starts == 1


def test_a_killed_process_is_said_to_have_died(tmp_path):
    code = "import sys, time; from pathlib import Path; from watched_runs import begin, advance\n"
    code += "advance(begin(Path(sys.argv[1])), 1, 3); print('ready', flush=True); time.sleep(60)"
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "run")], env=os.environ | paths, stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        from pipeline.contract.run_record import RunFolder

        watch = RunWatch("run", RunFolder(tmp_path / "run"))
        assert watch.look().state == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    died = watch.look()
    assert died.state == "died" and "gone" in died.reason and died.step == 3 and died.seconds_left is None


@pytest.mark.parametrize(
    ("reason", "stopped", "state"),
    [
        ("exp/run: stopped by a signal after step 7 of 120, state saved", True, "stopped"),
        ("exp/run: the loss is nan at step 9", False, "failed"),
    ],
)
def test_how_a_run_ended_is_told_apart(tmp_path, reason, stopped, state):
    folder = begin(tmp_path / "run")
    end(folder, reason, stopped)
    view = look(folder)
    assert (view.state, view.reason) == (state, reason)


def test_of_another_machine_nothing_is_known_but_silence():
    start = {"process": ANOTHER_MACHINE}
    state, reason = standing(False, start, 5.0)
    assert state == "running" and "another machine" in reason and "silent" not in reason
    state, reason = standing(False, start, QUIET_SECONDS + 1)
    assert state == "running" and "silent" in reason
    state, reason = standing(False, {}, None)
    assert state == "running" and "earlier version" in reason


def test_time_left_counts_later_phases_by_depth():
    assert seconds_left(settings(), 0, 10, 2.0) == pytest.approx(2 * (30 + 40 * 2 + 40 * 3))
    assert seconds_left(settings(), 2, STEPS, 2.0) == 0
    assert seconds_left(settings(), 0, 0, None) is None and seconds_left(settings(), 3, 0, 1.0) is None
    assert seconds_left(settings(), 0, 0, math.nan) is None


def test_a_resumed_run_counts_back_and_its_guard_rails_with_it(tmp_path):
    folder = begin(tmp_path / "run")
    advance(folder, 1, 20)
    folder.append_metrics(guard_record(20, "nonfinite", loss="inf"))
    watch = RunWatch("run", folder)
    assert watch.look().guards["nonfinite"] == 1
    folder.keep_metrics([record for record in folder.metrics() if record["step"] <= 10])
    back = watch.look()
    assert (back.step, back.guards["nonfinite"], back.events) == (10, 0, ())


def test_bad_files_are_remarks(tmp_path):
    folder = begin(tmp_path / "run")
    folder.append_metrics(train_record(1, loss=math.nan))
    with folder.metrics_path.open("a") as lines:
        lines.write("rubbish\n")
    (folder.path / "result.json").write_text("{")
    folder.write("config", {"run": "x", "settings": {"norm": "sideways"}})
    folder.write("shared_phases", ["exp/pre-grow-seed42"])
    view = look(folder, settings())
    assert view.state == "running" and math.isnan(view.loss) and view.steps == 3 * STEPS
    said = "; ".join(view.remarks)
    assert all(words in said for words in ("1 lines that are no records", "result.json cannot be read", "this version does not know"))
    assert "taken over from exp/pre-grow-seed42" in said


@pytest.mark.parametrize("name", ["config", "provenance", "result", "shared_phases"])
@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null", '{"settings": 3}', '["x"]', '{"a": {"b": 1}}'])
def test_nothing_in_a_folder_makes_a_look_fail(tmp_path, name, text):
    folder = begin(tmp_path / "run")
    (folder.path / f"{name}.json").write_text(text)
    assert look(folder, settings()).state in ("waiting", "running", "done")


def test_ages_are_never_negative(tmp_path):
    folder = begin(tmp_path / "run")
    advance(folder, 1, 1)
    os.utime(folder.metrics_path, (time.time() + 3600,) * 2)  # another machine's clock
    assert look(folder).last_record_age == 0
