"""Sets of the hub: found in the local cache, given up fast where there is no network."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

RESOLVE = """
import json, sys
from pipeline.contract.errors import DocumentError
from stage1_teacher.documents import files, hub
hub.HUB_SECONDS = 1
try:
    print(json.dumps([[file.path, file.name] for file in files.resolve_files([sys.argv[1]], (".parquet",))]))
except DocumentError as error:
    sys.exit(f"DocumentError {error}")
"""
ENTRY = "hub:datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"


def resolve_in_new_process(entry: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The hub library reads its environment once, on import."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()}
    run = [sys.executable, "-c", RESOLVE, entry]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=20, env=kept | environment, check=False)


# Nothing listens on port 9: the connection is refused, as on a machine without network.
@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["offline", "no network"])
def test_a_hub_set_that_is_not_here_fails_fast_with_both_ways_out(tmp_path: Path, environment: dict[str, str]) -> None:
    ran = resolve_in_new_process(ENTRY, HF_HOME=str(tmp_path), **environment)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    download = "hf download HuggingFaceFW/fineweb-edu --repo-type dataset --include 'sample/10BT/*.parquet'"
    assert all(part in ran.stderr for part in ("DocumentError dataset HuggingFaceFW/fineweb-edu", download, "--set documents.files=PATH"))


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = resolve_in_new_process(ENTRY, HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "--set documents.files=PATH" in ran.stderr and "Timeout" in ran.stderr


@pytest.mark.parametrize("pattern", ["sample/10BT/*.parquet", "sample/10BT", "sample/10BT/*"])
def test_a_hub_set_in_the_local_cache_is_found_offline(tmp_path: Path, pattern: str) -> None:
    cache = tmp_path / "hub" / "datasets--HuggingFaceFW--fineweb-edu"
    snapshot = cache / "snapshots" / ("0" * 40)
    for name in ("sample/10BT/001.parquet", "sample/10BT/000.parquet", "sample/100BT/000.parquet", "sample/10BT/notes.md"):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_text(name)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    entry = f"hub:datasets/HuggingFaceFW/fineweb-edu/{pattern}"
    ran = resolve_in_new_process(entry, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[f"{snapshot}/sample/10BT/{name}", name] for name in ("000.parquet", "001.parquet")]
