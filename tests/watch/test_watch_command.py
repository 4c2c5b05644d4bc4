"""The command: a real run watched from the outside, and what it says where there is little or nothing to see."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from tiny_teacher import text, write_parquet, write_teacher
from watched_runs import begin

from pipeline.cli import run_command
from pipeline.commands import watch as watch_command
from pipeline.commands.watch import watch_of
from pipeline.contract.layout import ArtifactRoot
from pipeline.watch.picture import Picture

SHARD = {
    "name": "tiny",
    "documents": {"source": "parquet", "limit": 40, "validation": {"documents": 3, "every": 4}, "max_length": 32},
    "targets": {"k": 8},
    "cache": {"documents_per_shard": 2, "codec": "plain"},
    "student": {
        "model": {"blocks": 2, "layers_per_block": 1, "initializer_range": 0.2},
        "steps": 20_000,
        "global_batch_size": 4,
        "eval_interval": 50,
        "checkpoint_interval": 1000,
        "probe_documents": 0,
        "tensorboard": False,
        "gradient_checkpointing": False,
    },
}
EXPERIMENT = {"name": "tiny", "shard": "tiny", "runs": [{"norm": "post", "curriculum": "grow"}, {"norm": "pre", "curriculum": "joint"}]}

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What an engine leaves in the environment of a process, so that a child would take itself for a part of its run."""


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with manifests, a teacher and documents: the place to run commands in."""
    folder = tmp_path_factory.mktemp("experiment")
    teacher = write_teacher(folder / "teacher")
    documents = write_parquet(folder / "documents.parquet", [text(4 + i % 9, i) for i in range(60)])
    shard = SHARD | {"teacher": {"model": str(teacher)}, "documents": SHARD["documents"] | {"files": str(documents)}}
    for kind, data in (("shards", shard), ("experiments", EXPERIMENT)):
        place = folder / "manifests" / kind
        place.mkdir(parents=True)
        (place / f"{data['name']}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return folder


@dataclass(frozen=True)
class Watched:
    """A real `pipeline run`: its root, every other picture taken while it went on, and the one after SIGTERM ended it."""

    root: Path
    pictures: list[Picture]
    last: Picture


@pytest.fixture(scope="module")
def watched(inputs, tmp_path_factory):
    """Capture and training by the command line in another process, watched from this one until it has trained for a while."""
    root = tmp_path_factory.mktemp("watched") / "artifacts"
    environment = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pipeline", "run", "tiny", "--root", str(root)]
    before, pictures = os.getcwd(), []
    os.chdir(inputs)
    try:
        watch = watch_of(["tiny"], None, ArtifactRoot.resolve(str(root)))
        with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            while not pictures or pictures[-1].runs[0].step < 60:
                assert process.poll() is None, process.stderr.read()
                pictures.append(watch.look())
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            process.communicate()
        return Watched(root, pictures, watch.look())
    finally:
        os.chdir(before)


def tree(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_run_in_another_process_is_seen_from_beginning_to_end(watched):
    runs = [picture.runs[0] for picture in watched.pictures]
    assert list(dict.fromkeys(run.state for run in runs)) == ["waiting", "running"]
    assert all(picture.runs[1].state == "waiting" for picture in watched.pictures)
    steps = [run.step for run in runs]
    assert steps == sorted(steps) and len(set(steps)) > 5 and steps[-1] >= 60
    now = runs[-1]
    assert (now.run, now.phase, now.phases, now.steps, now.active_layers) == ("tiny/post-grow-seed42", 0, 2, 40_000, 1)
    assert now.loss > 0 and now.kl > 0 and now.val_ce > 0 and 0 <= now.clip_fraction <= 1
    assert now.tokens_per_second > 0 and now.seconds_left > 0 and now.last_record_age < 60
    records = [json.loads(line) for line in (watched.root / "runs/tiny/post-grow-seed42/metrics.jsonl").read_text().splitlines()]
    (shown,) = [record for record in records if record["kind"] == "train" and record["step"] == now.step]
    assert (now.loss, now.kl) == (shown["train/loss"], shown["train/kl"])


def test_its_capture_is_seen_growing(watched):
    captures = [picture.capture for picture in watched.pictures]
    assert list(dict.fromkeys(capture.state for capture in captures)) == ["waiting", "running", "done"]
    going = [capture for capture in captures if capture.state == "running"]
    done = [capture.shards_done for capture in going]
    assert done == sorted(done) and len(set(done)) > 1 and all(capture.shards == 20 + 2 for capture in going)
    assert any(name.startswith("train-") for capture in going for name in capture.in_hand)
    assert any(capture.tokens_per_second and capture.seconds_left is not None for capture in going)
    assert (captures[-1].shards, captures[-1].documents) == (22, 43)


def test_a_hint_stands_only_while_nothing_goes_on(watched):
    assert watched.pictures[0].hint.startswith("nothing is there yet; 'pipeline run tiny --root") and not watched.pictures[-1].hint
    assert "goes on with what is left" in watched.last.hint


def test_a_stopped_run_says_so(watched):
    run = watched.last.runs[0]
    assert run.state == "stopped" and f"stopped by a signal after step {run.step} of 40000" in run.reason and run.seconds_left is None


def test_once_prints_one_picture_and_writes_nothing(watched, inputs, pipeline, monkeypatch):
    monkeypatch.chdir(inputs)
    before = tree(watched.root)
    code, out, err = pipeline("watch", "tiny", "--root", watched.root)  # stdout is no terminal here
    assert code == 0 and err == ""
    assert "2 runs: 1 stopped, 1 waiting" in out and "‖ stopped" in out and "cache tiny: done, 22 shards" in out
    assert re.search(r"post-grow-seed42 +‖ stopped +1/2 +\d+/40,000", out)
    assert pipeline("watch", "tiny", "--once", "--root", watched.root)[1].splitlines()[1:3] == out.splitlines()[1:3]
    assert tree(watched.root) == before


def test_a_terminal_that_cannot_be_drawn_on_gets_one_picture(pipeline, monkeypatch):
    dumb = Console(file=io.StringIO(), force_terminal=True, _environ={"TERM": "dumb"})
    monkeypatch.setattr(watch_command, "out", dumb)
    assert pipeline("watch", "demo-2x2")[0] == 0
    assert "4 runs: 4 waiting" in dumb.file.getvalue() and "\x1b[?1049h" not in dumb.file.getvalue()


def test_letters_that_stdout_has_not_are_no_error(pipeline, monkeypatch):
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", plain)
        assert run_command(["watch", "demo-2x2"]) == 0
        plain.flush()
    assert b"? waiting" in plain.buffer.getvalue()


def test_json_is_one_record(watched, inputs, pipeline, monkeypatch):
    monkeypatch.chdir(inputs)
    code, out, err = pipeline("watch", "tiny", "--json", "--root", watched.root)
    picture = json.loads(out)
    assert code == 0 and {"experiment", "at", "summary", "hint", "capture", "runs", "report"} == picture.keys()
    assert picture["runs"][0]["state"] == "stopped" and picture["capture"]["shards_done"] == 22
    code, out, _ = pipeline("watch", "tiny/post-grow-seed42", "--json", "--root", watched.root)
    assert code == 0 and [run["run"] for run in json.loads(out)["runs"]] == ["tiny/post-grow-seed42"]


def test_nan_in_the_records_is_null_in_json(tmp_path, pipeline):
    folder = begin(tmp_path / "artifacts/runs/a/b", "a/b")
    folder.append_metrics({"kind": "train", "step": 1, "phase": 0, "phase_step": 1, "train/loss": float("nan")})
    assert json.loads(pipeline("watch", "a/b", "--json")[1])["runs"][0]["loss"] is None
    assert "NaN" in pipeline("watch", "a/b")[1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "nope: no experiment has that name"),
        (["nope.yaml"], "nope.yaml: no such manifest file"),
        (["demo-2x2", "nope/run"], "demo-2x2: no experiment has that name and"),
        (["demo-2x2", "--serve", "--once"], "--once: a page has no end"),
        (["demo-2x2", "--every", "0"], "'--every'"),
        (["demo-2x2", "--every", "inf"], "'--every'"),
        (["demo-2x2", "--every", "nan"], "'--every'"),
        (["demo-2x2", "--serve", "--port", "70000"], "'--port'"),
        (["demo-2x2", "--serve", "--host", "192.0.2.1"], "192.0.2.1:8642: cannot be listened at"),
        (["demo-2x2", "--set", "stepz=3"], "stepz"),
    ],
)
def test_what_is_wrong_is_one_line(pipeline, arguments, said):
    code, out, err = pipeline("watch", *arguments)
    assert code == 2 and out == "" and err.startswith("error: ") and err.count("\n") == 1 and said in err


def test_a_taken_port_is_one_line(pipeline):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = pipeline("watch", "demo-2x2", "--serve", "--port", taken.getsockname()[1])
    assert code == 2 and out == "" and "in use" in err and "--port" in err and err.count("\n") == 1


def test_before_anything_is_there_it_says_what_to_run(pipeline, tmp_path):
    code, out, _ = pipeline("watch", "demo-2x2")
    assert code == 0 and "nothing is there yet; 'pipeline run demo-2x2' makes it" in out and "4 waiting, 0 of 40 steps" in out
    assert os.listdir(tmp_path) == []
