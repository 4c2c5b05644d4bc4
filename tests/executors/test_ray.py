"""Workers on a real Ray cluster: the bytes of one local worker, whatever is lost on the way (field case 28)."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import works
import yaml
from shards import payloads

from pipeline.contract.errors import PipelineError, RunError
from pipeline.executors.base import Ended
from pipeline.executors.each import run_each

ray = pytest.importorskip("ray")

from pipeline.executors.ray import ray_executor, require_room  # noqa: E402, where Ray is there

CHECKOUT = Path(__file__).parents[2]
SLOT = ["--worker-resources", '{"slot": 1}']


def joined(cluster, *more):
    """Options that put a command's workers on the tests' cluster."""
    return ["--executor", "ray", "--ray-address", cluster.address, *SLOT, *more]


def parent_of_a_holder(root: Path, unit: str = "train-*") -> int:
    """The actor whose process holds a lease, once there is one."""
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        for lease in root.glob(f"caches/tiny/leases/{unit}.json"):
            try:
                holder = json.loads(lease.read_text())["holder"].split("-")[1]
                return int(re.search(r"PPid:\s*(\d+)", Path(f"/proc/{holder}/status").read_text())[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        time.sleep(0.001)
    raise AssertionError("nobody came to hold a lease")


def test_three_actors_of_whom_one_is_killed(pipeline, inputs, ray_cluster, tmp_path):
    """By its number, as a lost machine takes it: another is started, and all bytes are those of one local worker."""
    capture = ["cache-teacher", "--shard", inputs / "tiny.yaml", "--json", "--root"]
    assert pipeline(*capture, tmp_path / "local")[0] == 0
    killer = threading.Thread(target=lambda: os.kill(parent_of_a_holder(tmp_path / "ray"), signal.SIGKILL))
    killer.start()
    code, out, err = pipeline(*capture, "ray", *joined(ray_cluster, "--workers", "3"))
    killer.join()
    assert code == 0, err
    assert payloads(tmp_path / "ray") == payloads(tmp_path / "local")
    assert len(re.findall(r"note: worker \d died \(its? .* has died\)", err)) == 1, err
    assert json.loads(out)["shards_written"] >= 32
    assert err.count("training documents, about") == 33
    workers = {json.loads(path.read_text())["worker"] for path in (tmp_path / "ray").rglob("logs/*")}
    assert len(workers) >= 2


def test_a_lost_node_s_work_is_done_on_another(ray_cluster, tmp_path):
    """Raylet and all go; the executor says so, and the work is started again where there is room."""
    node = ray_cluster.add_node(num_cpus=0, resources={"spare": 1})
    with ray_executor({"spare": 1}, ray_cluster.address) as executor:
        executor.start(0, partial(works.work_for_ever, tmp_path))
        number = executor.receive()[1]
        ray_cluster.remove_node(node)
        ray_cluster.add_node(num_cpus=0, resources={"spare": 1})
        seat, ended = executor.receive()
        assert seat == 0 and isinstance(ended.problem, str) and "died" in ended.problem
        run_each(executor, {"again": partial(works.die_until, tmp_path, 1)}, lambda line: None)
    assert (tmp_path / "done").exists()
    wait_for(lambda: not Path(f"/proc/{number}").exists())


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_same_messages_and_ends_as_locally(ray_cluster):
    with ray_executor({"slot": 0.5}, ray_cluster.address) as executor:
        assert executor.room() == 6 and executor.taking(3).resources == {"slot": 2}
        for seat, work in enumerate([partial(works.say, ["a", "b"]), works.refuse, works.break_down]):
            executor.start(seat, work)
        found = {0: [], 1: [], 2: []}
        while not all(messages and isinstance(messages[-1], Ended) for messages in found.values()):
            seat, message = executor.receive()
            found[seat].append(message)
    assert found[0] == ["a", "b", Ended()] and found[2] == [Ended("ZeroDivisionError: at once")]
    assert isinstance(found[1][1].problem, RunError) and str(found[1][1].problem) == "mend this"


def test_half_a_gpu_is_half_its_memory(ray_cluster):
    """Ray knows of GPUs what a node says, and shows a seat the one that it shares."""
    node = ray_cluster.add_node(num_cpus=0, num_gpus=1)
    with ray_executor({"GPU": 0.5}, ray_cluster.address) as executor:
        for seat in range(2):
            executor.start(seat, works.tell_devices)
        found = [executor.receive() for _ in range(4)]
    ray_cluster.remove_node(node)
    assert sorted((seat, *message) for seat, message in found if not isinstance(message, Ended)) == [(0, "0", 0.5), (1, "0", 0.5)]


def test_told_to_end_actors_and_processes_are_gone(ray_cluster, tmp_path):
    """Also one that waits for room it will never get."""
    with ray_executor({"slot": 2}, ray_cluster.address) as executor:
        for seat in range(2):
            executor.start(seat, partial(works.work_for_ever, tmp_path))
        seat, number = executor.receive()
        executor.end()
        assert [path.name for path in tmp_path.iterdir()] == [f"dropped-{number}"]
        wait_for(lambda: ray.available_resources().get("slot") == 3)


def test_students_are_trained_at_once_with_the_results_of_one_after_the_other(pipeline, inputs, ray_cluster, tmp_path):
    small = {"model": {"blocks": 2, "layers_per_block": 1, "initializer_range": 0.2}, "steps": 2, "global_batch_size": 4}
    experiment = {"name": "two", "shard": str(inputs / "tiny.yaml"), "student": small, "runs": [{"norm": "pre"}, {"norm": "post"}]}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(experiment), encoding="utf-8")
    found = {}
    for root, more in {"here": [], "workers": ["--workers", "2"], "there": joined(ray_cluster)}.items():
        code, out, err = pipeline("run", tmp_path / "two.yaml", "--json", "--root", root, *more)
        assert code == 0, err
        found[root] = json.loads(out)["students"]
    assert found["there"] == found["workers"] == found["here"]
    assert payloads(tmp_path / "there") == payloads(tmp_path / "workers") == payloads(tmp_path / "here")


def test_control_c_on_a_cluster_of_its_own(inputs, tmp_path):
    """One line, and no process is left: of the command, of its workers, of Ray."""
    command = [sys.executable, "-m", "pipeline", "cache-teacher", "--shard", inputs / "tiny.yaml", "--root", tmp_path, "--workers", "1"]
    command += ["--executor", "ray", "--set", "cache.documents_per_shard=1"]
    process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    actor = parent_of_a_holder(tmp_path, "*")  # whichever is seen: each is held for a moment only
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 2, err
    assert "Traceback" not in err, err
    assert re.findall("^error:.*", err, re.M) == ["error: interrupted; what is finished is kept, run the same command again to go on"]
    assert not list(tmp_path.glob("caches/tiny/leases/*"))
    wait_for(lambda: not Path(f"/proc/{actor}").exists())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--worker-resources", "two"], ["--worker-resources two", '{"GPU": 0.5']),
        (["--worker-resources", '{"GPU": 1.5}'], ['{"GPU": 1.5}', "a part of 1 or whole ones"]),
        (["--worker-resources", '{"GPU": 0}'], ["above 0"]),
        (["--ray-address", "ray://head:10001"], ["ray://head:10001", "HOST:PORT"]),
        (["--ray-address", "127.0.0.1:1"], ["--ray-address 127.0.0.1:1", "Connection refused", "ray start --head"]),
    ],
)
def test_options_that_do_not_fit_are_one_line(pipeline, inputs, more, parts):
    code, out, err = pipeline("cache-teacher", "--shard", inputs / "tiny.yaml", "--executor", "ray", *more)
    assert code == 2 and not out and err.startswith("error: ") and err.count("\n") == 1
    assert all(part in err for part in parts), err


def test_a_cluster_of_this_machine_has_what_it_has():
    with pytest.raises(PipelineError, match=r"--worker-resources GPU: 2 for a worker, this machine has 1; ask for less, or join a cluster"):
        require_room({"CPU": 1, "GPU": 2}, {"CPU": 4.0, "GPU": 1.0})


def test_without_ray_the_command_says_what_to_install(pipeline, inputs, monkeypatch):
    monkeypatch.setattr("pipeline.commands.executor_options.find_spec", lambda name: None)
    code, _, err = pipeline("cache-teacher", "--shard", inputs / "tiny.yaml", "--executor", "ray")
    assert code == 2 and err.count("\n") == 1 and "pip install 'block-stack-distillation[ray]'" in err
