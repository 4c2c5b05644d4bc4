"""An experiment over one shard, nothing of it made yet; and one that this process is in the middle of."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tiny_teacher import text, write_parquet, write_teacher
from watched_runs import STEPS, advance, begin, end, guard_record, val_record

from pipeline.commands.watch import watch_of
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.run_record import RunFolder
from pipeline.watch.picture import Picture, Watch
from pipeline.watch.run_state import RunWatch

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


@pytest.fixture(scope="session")
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


@pytest.fixture
def watch(tmp_path):
    """Four runs: one running with a spike behind it, one done, one failed with a hostile reason, one not begun."""
    runs = tmp_path / "runs"
    going = begin(runs / "going", "exp/going")
    going.append_metrics(val_record(0, 0, 9.0))
    advance(going, 1, STEPS + 5)
    going.append_metrics(guard_record(STEPS + 5, "loss_spike", **{"train/loss": 99.0, "mean": 3.0, "deviation": 0.1}))
    done = begin(runs / "done", "exp/done", norm="pre", curriculum="joint", steps=STEPS)
    advance(done, 1, STEPS)
    done.write("result", {})
    failed = begin(runs / "failed", "exp/failed")
    end(failed, "exp/failed: <script>alert(1)</script> \x1b[2J went wrong")
    return Watch("exp", [RunWatch(f"exp/{name}", RunFolder(runs / name)) for name in ("going", "done", "failed", "absent")])


@dataclass(frozen=True)
class Watched:
    """A real `pipeline run`: its root, every other picture taken while it went on, and the one after SIGTERM ended it."""

    root: Path
    pictures: list[Picture]
    last: Picture


@pytest.fixture(scope="session")
def watched(inputs, tmp_path_factory):
    """Capture and training by the command line in another process, watched from this one until it has trained for a while."""
    root = tmp_path_factory.mktemp("watched") / "artifacts"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
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
