"""No space, met for real (a limit on file size): one line, exit 2, nothing half-written believed, and the same command goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_teacher import text, write_parquet, write_teacher

ROOT = Path(__file__).parents[1]
LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
from pipeline.cli import run_command
sys.exit(run_command(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("full")
    write_teacher(path / "teacher", vocab_size=2048)
    write_parquet(path / "documents.parquet", [text(6 + i % 9, i) for i in range(60)])
    return path


def limited(folder, limit, *arguments):
    """Run a command that may write files of `limit` bytes at most."""
    command = [sys.executable, "-c", LIMITED, str(limit), *arguments, "--json"]
    # bytecode would be cut off too, and stay: the limit is on every file this process writes
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)


def one_line_of_no_space(done):
    error = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode == 2 and len(error) == 1 and "no space left" in error[0] and "Traceback" not in done.stderr


def test_capture_then_training(folder):
    capture = ["cache-teacher", "--shard", "fineweb-10bt", "--engine", "transformers"]
    for setting in (f"teacher.model={folder}/teacher", f"documents.files={folder}/documents.parquet", "documents.limit=40"):
        capture += ["--set", setting]
    assert one_line_of_no_space(limited(folder, 20_000, *capture))
    assert not list(folder.glob("artifacts/caches/*/manifest.json"))
    done = limited(folder, 10**9, *capture)
    assert done.returncode == 0 and json.loads(done.stdout)["splits"]["train"]["documents"] == 40

    train = ["train", "--set", "steps=4", "--set", "global_batch_size=4", "--set", "checkpoint_interval=2"]
    failed = limited(folder, 200_000, *train)
    assert one_line_of_no_space(failed), failed.stderr
    (run,) = folder.glob("artifacts/runs/*/*")
    assert not (run / "checkpoints/latest").exists() and not (run / "result.json").exists()
    done = limited(folder, 10**9, *train)
    assert done.returncode == 0 and json.loads(done.stdout)["steps_executed"] == 4, done.stderr
