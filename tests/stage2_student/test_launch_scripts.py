"""The launch files of stage two in miniature: two nodes of one process each, on this machine, join one run; they can be resumed."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from runs import CHECKOUT, environment, new_root, train_arguments

LAUNCH = CHECKOUT / "manifests/launch"


@pytest.fixture
def root(tmp_path, tiny_cache):
    return new_root(tmp_path / "artifacts", tiny_cache)


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def on_two_nodes(script: str, arguments: list[str], root: Path, **variables: str) -> list[str]:
    """Start a launch file twice, as node 0 and node 1; what each printed."""
    shared = environment() | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PIPELINE_HOME": str(root),
        "FIRST_NODE": f"127.0.0.1:{free_port()}",
        "DS_ACCELERATOR": "cpu",
        **variables,
    }
    nodes = [
        subprocess.Popen(
            ["bash", str(LAUNCH / script), *arguments],
            cwd=CHECKOUT,
            env=shared | {"NODE": str(node)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in (0, 1)
    ]
    ended = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(err[-2000:] for _, err in ended)
    return [out for out, _ in ended]


def results(outputs: list[str]) -> list[dict]:
    return [json.loads(line) for out in outputs for line in out.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("script", ["train-torchrun.sh", "train-deepspeed.sh"])
def test_two_nodes_join_one_run(root, tmp_path, script):
    (tmp_path / "hosts").write_text("127.0.0.1 slots=1\nlocalhost slots=1\n")
    variables = {"NODES": "2", "PROCESSES": "1", "HOSTFILE": str(tmp_path / "hosts")}
    arguments = train_arguments(root, "nodes", probe_documents=0)[1:]  # the files say `train` themselves
    (result,) = results(on_two_nodes(script, arguments, root, **variables))
    assert result["steps_executed"] == 4
    (started,) = json.loads((root / "runs/nodes/provenance.json").read_text())
    assert started["processes"] == 2
