"""Workers on a real Ray cluster: the bytes of one local worker, whatever is lost on the way (field case 28)."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
import yaml
from tiny_teacher import text, write_parquet, write_teacher

pytest.importorskip("ray")

SLOT = ["--worker-resources", '{"slot": 1}']


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    manifest = {
        "name": "tiny",
        "teacher": {"model": str(write_teacher(folder / "teacher"))},
        "documents": {
            "source": "parquet",
            "files": str(write_parquet(folder / "documents.parquet", [text(4 + i % 19, i) for i in range(90)])),
            "limit": 60,
            "validation": {"documents": 6, "every": 5},
            "max_length": 24,
        },
        "targets": {"k": 8},
        "cache": {"documents_per_shard": 2, "codec": "plain", "threads": 1},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(manifest), encoding="utf-8")
    return folder


def payloads(root: Path) -> dict[str, bytes]:
    """All that has to be equal: what was captured and what is recorded of it, not who did it."""
    cache = root / "caches/tiny"
    return {str(path.relative_to(cache)): path.read_bytes() for path in cache.rglob("*") if path.is_file() and "logs" not in path.parts}


def parent_of_a_holder(root: Path) -> int:
    """The actor whose process holds a shard, once there is one."""
    while True:
        for lease in root.glob("caches/tiny/leases/train-*.json"):
            try:
                holder = json.loads(lease.read_text())["holder"].split("-")[1]
                return int(re.search(r"PPid:\s*(\d+)", Path(f"/proc/{holder}/status").read_text())[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
        time.sleep(0.001)


def test_three_actors_of_whom_one_is_killed(pipeline, inputs, ray_cluster, tmp_path):
    """By its number, as a lost machine takes it: another is started, and all bytes are those of one local worker."""
    capture = ["cache-teacher", "--shard", inputs / "tiny.yaml", "--json", "--root"]
    assert pipeline(*capture, tmp_path / "local")[0] == 0
    killer = threading.Thread(target=lambda: os.kill(parent_of_a_holder(tmp_path / "ray"), signal.SIGKILL))
    killer.start()
    code, out, err = pipeline(*capture, "ray", "--executor", "ray", "--ray-address", ray_cluster.address, *SLOT, "--workers", "3")
    killer.join()
    assert code == 0, err
    assert payloads(tmp_path / "ray") == payloads(tmp_path / "local")
    assert len(re.findall(r"note: worker \d died \(its? .* has died\)", err)) == 1, err
    assert json.loads(out)["shards_written"] >= 32
    assert err.count("training documents, about") == 33
    workers = {json.loads(path.read_text())["worker"] for path in (tmp_path / "ray").rglob("logs/*")}
    assert len(workers) >= 2
