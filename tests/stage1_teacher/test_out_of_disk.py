"""No space for each kind of file in turn: one line, nothing half-written believed or left, and the same command goes on (case 29)."""

import shutil

import pytest
from captures import parquet, tree, write_shard_yaml
from forks import start_command
from tiny_teacher import write_teacher

from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store

LOST = ["rule.json", "teacher/interface.safetensors", "teacher.json", "vocabulary.arrow", "shards/train-00001-*.arrow", "manifest.json"]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Teacher, documents and a manifest that names them."""
    folder = tmp_path_factory.mktemp("here")
    write_shard_yaml(folder, write_teacher(folder / "teacher"), parquet(folder), cache={"codec": "ranks"})
    return folder


def capture(here, root, **options):
    """Exit code and stderr of the command."""
    root.mkdir(exist_ok=True)
    process = start_command(["cache-teacher", "--shard", str(here / "tiny.yaml"), "--root", str(root)], root / "stderr", **options)
    process.join(60)
    return process.exitcode, (root / "stderr").read_text()


@pytest.fixture(scope="module")
def whole(here):
    assert capture(here, here / "whole")[0] == 0
    return here / "whole/caches/tiny"


@pytest.mark.parametrize("pattern", LOST)
def test_there_is_no_room_for_a_file(tmp_path, here, whole, pattern):
    """All is there but this file and what comes after it, and no file may be as large."""
    root, original = tmp_path / "root", tree(whole)
    cache = shutil.copytree(whole, root / "caches/tiny")
    (lost,) = cache.glob(pattern)
    size, name = lost.stat().st_size, str(lost.relative_to(cache))
    for path in {lost, cache / "manifest.json"}:
        path.unlink()
    code, err = capture(here, root, file_bytes=size - 1)
    assert code == 2, err
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "no space left while writing" in errors[0] and "Traceback" not in err
    after = tree(cache)
    assert name not in after and "manifest.json" not in after
    assert {left: data for left, data in original.items() if left in after} == after
    assert capture(here, root)[0] == 0
    assert tree(cache) == original
    assert verify(open_store(cache), deep=True).bad == []


def test_a_disk_that_fills_in_the_middle(tmp_path, here, whole):
    """From an empty folder: how far it came is kept."""
    original = tree(whole)
    sizes = sorted(len(data) for data in original.values() if len(data) > 1000)  # what it says on stderr has to fit
    for size in sizes[: -1 : len(sizes) // 4]:
        code, err = capture(here, tmp_path / "root", file_bytes=size)
        assert code == 2 and "no space left" in err, err
        assert tree(tmp_path / "root/caches/tiny").items() <= original.items()
    assert capture(here, tmp_path / "root")[0] == 0
    assert tree(tmp_path / "root/caches/tiny") == original
