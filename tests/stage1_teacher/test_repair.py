"""`pipeline cache repair` makes every file what it was, from what is still there; or says what a person has to bring back (case 33)."""

import json
import shutil

import pytest
from captures import parquet, shard, take, tree
from forks import Death, run
from tiny_teacher import write_teacher

from pipeline.contract.errors import CacheError, DocumentError, TeacherError
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher import worker
from stage1_teacher.repair import repair

FOREIGN = {"holder": "0123456789abcdef-1-1", "worker": "w", "beat": 0}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Teacher, documents and a cache of them in one folder."""
    folder = tmp_path_factory.mktemp("made")
    write_teacher(folder / "teacher")
    parquet(folder)
    take(of(folder), folder / "artifacts/caches/tiny")
    return folder


def of(folder, limit=10, **sections):
    documents = {"limit": limit, "validation": {"documents": 3, "every": 5}}
    return shard(folder / "teacher", folder / "documents.parquet", documents=documents, **sections)


@pytest.fixture
def cache(made, tmp_path):
    """A copy to harm, bound to the teacher and documents in `made`."""
    return open_store(shutil.copytree(made / "artifacts/caches/tiny", tmp_path / "artifacts/caches/tiny"))


@pytest.fixture
def whole(made):
    return tree(made / "artifacts/caches/tiny")


@pytest.fixture
def without(made):
    """Move teacher or documents away for a while."""
    moved = []

    def away(*names):
        for name in names:
            (made / name).rename(made / f"away-{name}")
            moved.append(name)

    yield away
    for name in moved:
        (made / f"away-{name}").rename(made / name)


def payload(cache, number=0):
    return cache.path / read_manifest(cache).splits["train"].shards[number].payload.name


def sidecars(cache):
    return sorted(cache.path.glob("shards/*.json"))


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_a_whole_cache_is_left_alone(cache, whole):
    assert repair(cache).found == []
    assert tree(cache) == whole


def test_records_need_neither_teacher_nor_documents(cache, whole, without):
    without("teacher", "documents.parquet")
    for path in [*sidecars(cache), *(cache.path / name for name in ("rule.json", "teacher.json", "vocabulary.json"))]:
        flip(path)
    done = repair(cache)
    assert len(done.mended) == len(sidecars(cache)) + 3 and done.remade == []
    assert tree(cache) == whole


@pytest.mark.parametrize("number", [2, 3])
def test_payloads_that_changed_places_need_no_teacher(cache, whole, without, number):
    """A swap, and a round of three."""
    without("teacher", "documents.parquet")
    paths = [payload(cache, i) for i in range(number)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)
    assert len(repair(cache).mended) == number
    assert tree(cache) == whole


def test_payloads_that_were_renamed_need_no_teacher(cache, whole, without):
    """One aside, and another to its place."""
    without("teacher", "documents.parquet")
    first, second = payload(cache, 0), payload(cache, 1)
    first.rename(first.with_name("aside.arrow"))
    second.rename(first)
    assert len(repair(cache).mended) == 2
    first.with_name("aside.arrow").unlink()
    assert tree(cache) == whole


def test_exactly_what_is_lost_is_made_again(cache, whole):
    flip(payload(cache, 1))
    flip(cache.path / "teacher/config.json")
    seen = []
    done = repair(cache, lambda record, reused, seconds: seen.append((record.name, reused)))
    assert {name for name, reused in seen if not reused} == {"train-00001"}
    assert {bad.file for bad in done.found} == {f"shards/{payload(cache, 1).name}", "teacher/config.json"}
    assert tree(cache) == whole


@pytest.mark.parametrize("name", ["manifest.json", "vocabulary.arrow", "teacher/interface.safetensors"])
def test_each_file_beside_the_shards(cache, whole, name):
    flip(cache.path / name)
    assert repair(cache).mended == [name]
    assert tree(cache) == whole


@pytest.mark.parametrize(("away", "kind"), [("teacher", TeacherError), ("documents.parquet", DocumentError)])
def test_what_only_a_person_can_bring_back_is_named(cache, made, without, away, kind):
    """And what is there stays as it was found: it may be all that is left."""
    without(away)
    lost, record = payload(cache, 1), sidecars(cache)[0]
    flip(lost), flip(record)
    damaged = lost.read_bytes()
    with pytest.raises(kind) as caught:
        repair(cache)
    line = str(caught.value)
    assert f"{lost.name} can only be made again from teacher and documents: " in line and f"{made / away}" in line and "\n" not in line
    assert lost.read_bytes() == damaged
    assert {bad.file for bad in verify(cache, deep=True).bad} == {f"shards/{lost.name}"}


def test_many_lost_files_are_counted(cache, without):
    without("teacher")
    shutil.rmtree(cache.path / "shards")
    with pytest.raises(TeacherError, match=r"\.arrow and 1 more can only be made again"):
        repair(cache)


def test_another_teacher_than_the_caches_is_refused(cache, made, without):
    without("teacher")
    write_teacher(made / "teacher", seed=1)
    payload(cache).unlink()
    try:
        with pytest.raises(CacheError, match=r"can only be made again from teacher and documents: .* was made with teacher.files="):
            repair(cache)
    finally:
        shutil.rmtree(made / "teacher")


def test_without_manifest_and_rule_a_person_has_to_say(cache, whole, made):
    for name in ("manifest.json", "rule.json"):
        (cache.path / name).unlink()
    with pytest.raises(CacheError, match=r"nothing says what its shards hold; run 'pipeline cache-teacher --shard tiny' with the settings"):
        repair(cache)
    assert take(of(made), cache).shards_written == 0  # as that command does
    assert tree(cache) == whole


def test_a_worker_is_not_disturbed(cache, whole):
    cache.write_json("leases/train-00000.json", FOREIGN)
    flip(cache.path / "rule.json")
    with pytest.raises(CacheError, match="train-00000 is in the hands of a worker"):
        repair(cache)
    repair(cache, force=True)
    assert tree(cache) == whole


def test_an_extension_that_was_stopped_is_undone_and_can_go_on(cache, whole, made, tmp_path):
    """Repair makes a cache what its manifest says. What was finished beyond it stays, for the extension to find."""
    assert run(of(made, limit=13), cache.path, Death("before", "manifest")) == -9
    assert {bad.file for bad in verify(cache, deep=True).bad} == {"rule.json", "shards/train-00002.json"}
    repair(cache)
    assert verify(cache, deep=True).bad == []
    after = tree(cache)
    assert {name: after[name] for name in whole} == whole
    assert take(of(made, limit=13), cache).shards_written == 1
    take(of(made, limit=13), tmp_path / "at-once")
    after, at_once = tree(cache), tree(tmp_path / "at-once")
    assert {name: after[name] for name in at_once} == at_once


def test_a_split_that_was_captured_less_far_stays_so(made, tmp_path):
    """Training alone was extended; of the validation set there was more to come."""
    for limit, split in ((5, "all"), (10, "train")):
        take(of(made, limit=limit), tmp_path, split=split)
    cache = open_store(tmp_path)
    limits = {name: split.limit for name, split in read_manifest(cache).splits.items()}
    before = tree(cache)
    flip(payload(cache, 1))
    repair(cache)
    assert {name: split.limit for name, split in read_manifest(cache).splits.items()} == limits == {"train": 10, "validation": 5}
    assert tree(cache) == before


def test_other_bytes_than_before_are_told(cache, whole, monkeypatch):
    """As where another kind of device makes a shard again."""
    make = worker.make_codec

    def other(*arguments):
        codec = make(*arguments)
        codec.zstd_level = 9
        return codec

    monkeypatch.setattr(worker, "make_codec", other)
    payload(cache, 1).unlink()
    assert repair(cache).remade == ["train-00001"]
    assert verify(cache, deep=True).bad == []
    assert [name[:18] for name in set(whole) - set(tree(cache))] == ["shards/train-00001"]


def test_the_command(cache, pipeline):
    flip(payload(cache, 1))
    code, out, err = pipeline("cache", "repair", "--shard", "tiny", "--json")
    assert code == 0, err
    done = json.loads(out)
    assert done["ok"] and done["remade"] == [] and [part["file"] for part in done["mended"]] == [f"shards/{payload(cache, 1).name}"]
    assert "train-00001: done again" in err
    code, out, _ = pipeline("cache", "repair", "--shard", "tiny")
    assert (code, out.strip()) == (0, "artifacts/caches/tiny: nothing to mend, every byte verified")
    payload(cache, 1).unlink()
    assert "is missing; mended" in pipeline("cache", "repair", "--shard", "tiny")[1]
    shutil.rmtree(cache.path)
    code, _, err = pipeline("cache", "repair", "--shard", "tiny")
    assert code == 2 and err.count("\n") == 1
