"""Started by another: torchrun's processes join one run and one of them reports; a killed launcher leaves no orphan."""

import json
import os
import signal
import time

import pytest
from runs import finish, metrics, new_root, start, train_arguments

from stage2_student.engine import Processes
from stage2_student.loss.row_kernels import available_kernels

LONG = {"steps": 400, "checkpoint_interval": 1000, "eval_interval": 1000}


@pytest.fixture
def root(tmp_path, tiny_cache):
    return new_root(tmp_path / "artifacts", tiny_cache)


def test_torchrun_joins_and_one_rank_reports(root):
    launcher = ["--standalone", "--nproc-per-node=2", "-m", "pipeline", *train_arguments(root, "joined")]
    out, _ = finish(start(launcher, module="torch.distributed.run"))
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    assert json.loads(line)["steps_executed"] == 4
    (start_record,) = json.loads((root / "runs/joined/provenance.json").read_text())
    assert start_record["processes"] == 2
    assert start_record["loss_kernels"] == available_kernels("auto", "cpu") and start_record["loss_kernels_ran"] == ["eager"]
    again, _ = finish(start(launcher, module="torch.distributed.run"))
    (line,) = [line for line in again.splitlines() if line.startswith("{")]
    assert json.loads(line)["steps_executed"] == 0


def test_deepspeed_s_launcher_joins(root, monkeypatch):
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    launcher = ["--num_accelerators", "2", "--module", "pipeline", *train_arguments(root, "joined")]
    out, _ = finish(start(launcher, module="deepspeed.launcher.runner"))
    (line,) = [line for line in out.splitlines() if line.startswith("{")]
    assert json.loads(line)["steps_executed"] == 4


def test_a_killed_launcher_leaves_no_orphan(root):
    """The workers get a SIGTERM when their parent dies, save, and end; the same command goes on."""
    arguments = train_arguments(root, "orphans", "--devices", "2", **LONG)
    launcher, folder = start(arguments), root / "runs/orphans"
    wait_for(lambda: len(metrics(folder, "train")) >= 3)
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait()
    wait_for(lambda: (folder / "checkpoints/latest").is_file())
    done = len(metrics(folder, "train"))
    resumed = start(arguments)
    wait_for(lambda: len(metrics(folder, "train")) > done or resumed.poll() is not None)
    assert resumed.poll() is None, resumed.communicate()[1][-2000:]
    resumed.send_signal(signal.SIGTERM)
    _, err = finish(resumed, code=2)
    assert "error: orphans: stopped by a signal" in err.strip().splitlines()[-1]


def wait_for(condition, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_run_of_this_process_leaves_no_launcher_to_what_it_starts():
    """That would take this process's rank and port for its own."""
    Processes()
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} & os.environ.keys()
