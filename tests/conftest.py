"""What every test shares: one thread a process, no network, and a word on which real components ran."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "2")

import pytest

from pipeline.cli import run_command


@pytest.fixture
def pipeline(monkeypatch, tmp_path, capsys):
    """Run `pipeline ARGUMENTS` in this process, in an empty folder: gives exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPELINE_HOME", raising=False)

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run_command([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return run
