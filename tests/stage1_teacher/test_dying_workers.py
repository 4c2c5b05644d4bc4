"""Workers that die with their engine or their machine: replaced, their shard made by another, given up by name (field case 28)."""

import time
from multiprocessing import get_context

import pytest
import torch
from captures import parquet, shard, take, tree
from dying import DeathAt, Dying
from forks import warm_up
from tiny_teacher import text, write_teacher

from pipeline.contract.errors import CacheError, PipelineError, TeacherError
from pipeline.contract.store import open_store
from pipeline.executors import child
from pipeline.executors.local import LocalExecutor
from stage1_teacher import worker
from stage1_teacher.engines.base import EngineDied, died_of
from stage1_teacher.engines.transformers_engine import TransformersEngine
from stage1_teacher.rule import claim, find_inputs
from stage1_teacher.worker import CaptureRequest, Worker
from stage1_teacher.workers import _work

SECTIONS = {"documents": {"limit": 30, "validation": {"documents": 4, "every": 5}}, "cache": {"codec": "plain", "documents_per_shard": 6}}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder, [None if i % 7 == 3 else text(1 + i % 23, i) for i in range(50)])


@pytest.fixture(scope="module")
def manifest(inputs):
    return shard(*inputs, **SECTIONS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, manifest):
    """What one worker makes that nothing happens to."""
    cache = tmp_path_factory.mktemp("alone")
    take(manifest, cache)
    return tree(cache)


@pytest.fixture(autouse=True)
def warm_workers(monkeypatch):
    """Workers forked from a process that has imported everything."""
    warm_up()
    monkeypatch.setattr(child.multiprocessing, "get_context", lambda kind: get_context("forkserver"))


@pytest.mark.parametrize(("how", "reason"), [("kill", "exit code -9"), ("engine", "train-00.*: the engine died of AcceleratorError: CUDA")])
def test_a_shard_that_workers_die_at_is_given_up_by_name(tmp_path, manifest, alone, how, reason):
    """What is finished stays, and the same command goes on once the fault is mended."""
    executor = Dying(LocalExecutor([{}]), DeathAt(tmp_path, "train-00002", how, times=99))
    cache = tmp_path / "cache"
    rows = r"\(documents 12 to 17 of its split: .*documents.parquet row 1\d to .*documents.parquet row 2\d\)"
    with pytest.raises(PipelineError, match=rf"^train-00002 {rows}: 3 workers died at it, the last of {reason}.*what is finished"):
        take(manifest, cache, workers=1, executor=executor)
    assert len(executor.started) == 3 and len(list(tmp_path.glob("death-*"))) == 3
    there = {path.stem for path in cache.glob("shards/*.json")}
    assert {"train-00000", "train-00001"} <= there and "train-00002" not in there
    assert open_store(cache).names("leases") == []
    assert take(manifest, cache).shards_reused == len(there)
    assert tree(cache) == alone


def test_a_dead_engine_s_shard_goes_to_another(tmp_path, manifest, alone):
    """One place has a broken device: whatever process works there dies at its shards, and the other makes them."""
    said, cache = [], tmp_path / "cache"
    executor = Dying(LocalExecutor([{}]), DeathAt(tmp_path, "train-00000", "engine", times=99, seat=0))
    take(manifest, cache, workers=2, executor=executor, on_death=said.append)
    assert tree(cache) == alone
    assert len(said) <= 1  # the other may have been first
    assert all("worker 0 died (train-00000" in line and line.endswith("another starts in its place") for line in said)


def test_a_shunned_shard_is_left_to_others_for_a_while(tmp_path, manifest, monkeypatch):
    """Then nobody else has come, and it is made."""
    monkeypatch.setattr(worker, "WAIT_SECONDS", 0.05)
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "1")
    seen = []
    request = CaptureRequest(manifest, open_store(tmp_path), ["train"], on_begin=lambda begun: seen.append(begun.name))
    found = find_inputs(manifest, None)
    rule = claim(request.cache, manifest, {}, found.identity, "plain")
    start = time.monotonic()
    Worker(request, rule, shunned={"train-00001"}).run()
    assert seen[0] == "train-00000" and seen[-1] == "train-00001" and len(seen) == len(set(seen)) > 2
    assert time.monotonic() - start > 1


def test_workers_that_never_come_to_a_shard_are_not_started_for_ever(tmp_path, manifest):
    executor, said = Dying(LocalExecutor([{}]), DeathAt(tmp_path, None, times=99)), []
    with pytest.raises(PipelineError, match=r"--workers 2: none comes as far as a shard, each place was tried 3 times .* exit code -9\)"):
        take(manifest, tmp_path / "cache", workers=2, executor=executor, on_death=said.append)
    assert sorted(executor.started) == [0, 0, 0, 1, 1, 1]
    assert [line.endswith("the others go on without it") for line in sorted(said)].count(True) == 2


def test_a_place_where_nothing_works_does_not_stop_the_others(tmp_path, manifest, alone):
    cache = tmp_path / "cache"
    take(manifest, cache, workers=2, executor=Dying(LocalExecutor([{}]), DeathAt(tmp_path, None, times=99, seat=1)))
    assert tree(cache) == alone


def test_the_lease_of_a_worker_that_died_elsewhere_is_given_free(tmp_path, manifest, alone, monkeypatch):
    """No process can see that its holder is gone: the one that started it was told, and nobody waits for patience to end."""
    monkeypatch.setenv("PIPELINE_LEASE_SECONDS", "90")
    cache, started = tmp_path / "cache", time.monotonic()
    executor = Dying(LocalExecutor([{"PIPELINE_LEASE_SECONDS": "90"}]), DeathAt(tmp_path, "train-00001", elsewhere=True))
    take(manifest, cache, workers=2, executor=executor)
    assert time.monotonic() - started < 80
    assert tree(cache) == alone
    assert len(list(tmp_path.glob("death-*"))) == 1


def test_a_machine_that_sees_another_folder_is_refused_before_it_writes(tmp_path, manifest):
    """There the rule, which the command wrote before it started anybody, is missing: its shards would be nobody's."""
    request = CaptureRequest(manifest, open_store(tmp_path / "not shared"), ["train"])
    with pytest.raises(CacheError, match=r"not shared: is another folder on .*; give --root one that all machines share, or a bucket"):
        _work(request, None, frozenset(), lambda message: None)
    assert not (tmp_path / "not shared").exists()


def test_an_engine_that_dies_in_the_command_s_own_process_is_one_line(tmp_path, manifest, monkeypatch):
    def die(engine, documents, targets=None):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore")

    monkeypatch.setattr(TransformersEngine, "score", die)
    with pytest.raises(EngineDied, match=r"the engine died of AcceleratorError: CUDA error: unspecified launch failure more; run the same"):
        take(manifest, tmp_path)


@pytest.mark.parametrize(
    ("error", "dead"),
    [
        (torch.AcceleratorError("anything"), True),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("NCCL error in: ProcessGroupNCCL.cpp:1"), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), False),
        (RuntimeError("expected scalar type Float but found Half"), False),
        (TeacherError("a document"), False),
        (ValueError("CUDA error"), False),
    ],
)
def test_what_an_engine_dies_of(error, dead):
    assert (died_of(error) is not None) == dead


def test_vllm_says_that_its_engine_is_dead():
    exceptions = pytest.importorskip("vllm.v1.engine.exceptions")
    assert "EngineDeadError" in died_of(exceptions.EngineDeadError())
