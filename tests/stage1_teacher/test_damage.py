"""Whatever is damaged, `verify` names it, and the same command again does exactly that part again (field cases 30, 33)."""

import shutil
from pathlib import Path

import pytest
from captures import parquet, shard, take, tree, write_shard_yaml
from tiny_teacher import write_teacher

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.index import read_manifest, sidecar_name
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.sealed import sealed_bytes, unsealed
from pipeline.contract.store import open_store

SECTIONS = {"documents": {"limit": 10, "validation": {"documents": 2}}, "cache": {"codec": "clusters", "calibration_rows": 40}}
BESIDE = ["manifest.json", "rule.json", "teacher.json", "vocabulary.json", "vocabulary.arrow", "teacher/config.json"]
BESIDE += ["teacher/interface.safetensors", "teacher/tokenizer.json", "teacher/tokenizer_config.json"]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder)


@pytest.fixture(scope="module")
def manifest(inputs):
    return shard(*inputs, **SECTIONS)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, manifest):
    cache = tmp_path_factory.mktemp("whole") / "tiny"
    take(manifest, cache)
    return cache, tree(cache)


@pytest.fixture
def cache(whole, tmp_path):
    """A copy to harm."""
    return shutil.copytree(whole[0], tmp_path / "tiny")


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def swap(a: Path, b: Path) -> None:
    aside = a.with_name("aside")
    a.rename(aside), b.rename(a), aside.rename(b)


def payload(cache: Path, number: int = 1) -> Path:
    return cache / read_manifest(open_store(cache)).splits["train"].shards[number].payload.name


def sidecar(cache: Path, number: int = 1) -> Path:
    return cache / sidecar_name("train", number)


def bad(cache: Path, deep: bool = True) -> set[str]:
    return {part.file for part in verify(open_store(cache), deep=deep).bad}


@pytest.mark.parametrize("harm", [flip, cut, empty, Path.unlink], ids=lambda harm: harm.__name__)
def test_a_harmed_payload_is_redone_and_no_other(cache, whole, manifest, harm):
    times = {path.name: path.stat().st_mtime_ns for path in cache.glob("shards/*")}
    harmed = payload(cache)
    harm(harmed)
    assert bad(cache) == {f"shards/{harmed.name}"}
    assert bad(cache, deep=False) == (set() if harm is flip else {f"shards/{harmed.name}"})
    result = take(manifest, cache)
    assert (result.shards_written, result.shards_reused) == (1, 3)
    assert tree(cache) == whole[1]
    assert {name for name in times if (cache / "shards" / name).stat().st_mtime_ns != times[name]} == {harmed.name, "train-00001.json"}


@pytest.mark.parametrize("harm", [flip, cut, empty, Path.unlink], ids=lambda harm: harm.__name__)
def test_a_harmed_sidecar_of_a_finished_cache_costs_no_teacher(cache, whole, manifest, harm):
    harm(sidecar(cache))
    assert bad(cache) == {"shards/train-00001.json"}
    result = take(manifest, cache)
    assert (result.shards_written, result.shards_reused) == (0, 4)
    assert tree(cache) == whole[1]


def test_swapped_payloads_are_both_found(cache, whole, manifest):
    swap(payload(cache, 0), payload(cache, 1))
    assert len(bad(cache)) == 2
    assert take(manifest, cache).shards_written == 2
    assert tree(cache) == whole[1]


@pytest.mark.parametrize("finished", [True, False])
def test_swapped_sidecars_are_both_found(cache, whole, manifest, finished):
    if not finished:
        (cache / "manifest.json").unlink()
    swap(sidecar(cache, 0), sidecar(cache, 1))
    assert bad(cache) - {"manifest.json"} == {"shards/train-00000.json", "shards/train-00001.json"}
    assert take(manifest, cache).shards_written == (0 if finished else 2)  # the manifest has them too
    assert tree(cache) == whole[1]


def test_deleted_shards_are_redone(cache, whole, manifest):
    shutil.rmtree(cache / "shards")
    assert len(bad(cache)) == 8
    assert take(manifest, cache).shards_written == 4
    assert tree(cache) == whole[1]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_shard_of_another_cache_is_noticed(cache, whole, manifest, inputs, tmp_path, number, finished):
    """Sidecar and payload belong together, are whole, and hold as many documents: only the rule differs."""
    other = tmp_path / "other"
    take(shard(*inputs, **SECTIONS, targets={"k": 9}), other)
    if not finished:
        (cache / "manifest.json").unlink()
    for path in other.glob(f"shards/train-{number:05d}*"):
        shutil.copy(path, cache / "shards" / path.name)
    assert bad(cache) - {"manifest.json"} == {f"shards/train-{number:05d}.json"}
    assert take(manifest, cache).shards_written == (0 if finished else 1)
    after = tree(cache)
    assert len(after.keys() - whole[1].keys()) == 1  # the other cache's payload, which no record names
    assert {name: after[name] for name in whole[1]} == whole[1]


@pytest.mark.parametrize("harm", [flip, cut, empty, Path.unlink], ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", BESIDE)
def test_a_harmed_file_beside_the_shards_is_mended(cache, whole, manifest, name, harm):
    harm(cache / name)
    assert bad(cache) == {name}
    result = take(manifest, cache)
    assert (result.shards_written, result.shards_reused) == (0, 4)
    assert tree(cache) == whole[1]


def test_every_record_at_once(cache, whole, manifest):
    """From the manifest alone; and the manifest from them."""
    for path in cache.rglob("*.json"):
        if path.parent.name != "teacher" and path.name != "manifest.json":
            path.unlink()
    assert take(manifest, cache).shards_written == 0
    assert tree(cache) == whole[1]


@pytest.mark.parametrize("harm", [flip, Path.unlink], ids=lambda harm: harm.__name__)
def test_rule_and_manifest_lost(cache, whole, manifest, inputs, pipeline, harm):
    """The settings say by which rule, and the shards say whether it is theirs."""
    for name in ("rule.json", "manifest.json"):
        harm(cache / name)
    assert {"rule.json", "manifest.json"} <= bad(cache)
    root = cache.parent / "root"
    shutil.copytree(cache, root / "caches/tiny")
    yaml = write_shard_yaml(root, *inputs, **SECTIONS, targets={"k": 9})
    code, _, err = pipeline("cache-teacher", "--shard", yaml, "--root", root)
    assert code == 2 and err.count("\n") == 1
    assert "its rule is lost, and shards/train-00000.json was made by another one (fingerprint" in err
    assert take(manifest, cache).shards_written == 0
    assert tree(cache) == whole[1]


def test_a_lost_vocabulary_is_made_again_as_it_was(cache, whole, manifest):
    """Record and file: the manifest says which one it has to be."""
    for name in ("vocabulary.json", "vocabulary.arrow"):
        (cache / name).unlink()
    assert take(manifest, cache).shards_written == 0
    assert tree(cache) == whole[1]


def test_another_vocabulary_is_refused_with_a_manifest_and_makes_shards_anew_without(cache, manifest):
    """As where another kind of device calibrates: what was coded by the lost one could never be read by the new one."""
    other = manifest.model_copy(update={"cache": manifest.cache.model_copy(update={"vocabulary_tokens": 4})})
    for name in ("vocabulary.json", "vocabulary.arrow"):
        (cache / name).unlink()
    with pytest.raises(CacheError, match=r"vocabulary.arrow: is lost, and this machine's teacher gives another one \(hash"):
        take(other, cache)
    for name in ("vocabulary.json", "manifest.json"):
        (cache / name).unlink()
    assert take(other, cache).shards_written == 4
    assert bad(cache) == set()


@pytest.mark.parametrize("name", ["rule.json", "manifest.json"])
def test_a_cache_of_a_later_version_is_not_touched(cache, manifest, name):
    path = cache / name
    path.write_bytes(sealed_bytes(unsealed(path.read_bytes()) | {"format_version": 2}))
    if name == "rule.json":
        (cache / "manifest.json").unlink()
    before = tree(cache)
    with pytest.raises(CacheError, match="format_version 2 is not 1, the one this version reads"):
        take(manifest, cache)
    assert tree(cache) == before
