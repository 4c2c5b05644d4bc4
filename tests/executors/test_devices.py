"""Which GPUs each worker sees, and that it is known before anything else."""

import os
import sys

import pytest

from pipeline.contract.errors import PipelineError
from pipeline.executors.base import Ended
from pipeline.executors.devices import deal, device_share, visible_devices
from pipeline.executors.local import LocalExecutor


def dealt(devices, group=1):
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in deal(devices, group)]


@pytest.mark.parametrize(
    ("devices", "group", "expected"),
    [
        ([], 1, [None]),
        (["0"], 1, ["0"]),
        (["0", "1", "2"], 1, ["0", "1", "2"]),
        (["3", "GPU-5f", "MIG-7"], 1, ["3", "GPU-5f", "MIG-7"]),
        (["0", "1", "2", "3"], 2, ["0,1", "2,3"]),
        (["0", "1", "2", "3", "4"], 2, ["0,1", "2,3"]),
        (["7", "2"], 2, ["7,2"]),
    ],
)
def test_a_device_or_a_group_each(devices, group, expected):
    assert dealt(devices, group) == expected


@pytest.mark.parametrize(("workers", "share"), [(1, None), (2, None), (3, "0.5"), (4, "0.5"), (5, repr(1 / 3))])
def test_workers_that_share_a_device_share_its_memory(workers, share):
    assert {environment.get("PIPELINE_DEVICE_SHARE") for environment in deal(["0", "1", "2", "3"], 2, workers)} == {share}


def test_too_few_for_a_group():
    with pytest.raises(PipelineError, match=r"CUDA_VISIBLE_DEVICES=0,1: 2 visible GPUs, a worker takes 4; make more visible, or"):
        deal(["0", "1"], 4)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("", []), ("2", ["2"]), ("3, 1", ["3", "1"]), ("GPU-a1,MIG-b2", ["GPU-a1", "MIG-b2"]), ("0,-1,1", ["0"]), ("-1", [])],
)
def test_what_the_user_made_visible_is_dealt(chosen, expected):
    assert visible_devices({"CUDA_VISIBLE_DEVICES": chosen}) == expected


def test_all_of_the_machine_s_devices(monkeypatch):
    import torch

    assert visible_devices({}) == [str(number) for number in range(torch.cuda.device_count())]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert visible_devices({}) == ["0", "1", "2"]
    assert not torch.cuda.is_initialized()


class SeenAtImport:
    """Work whose unpickling looks at its process, as a library would that is imported then."""

    def __reduce__(self):
        return look, ()


def look():
    seen = (os.environ.get("CUDA_VISIBLE_DEVICES"), device_share(), "torch" in sys.modules)
    return lambda send: send(seen)


def test_a_process_knows_its_devices_before_it_imports_anything():
    """More workers than devices share them, round and round."""
    executor, found = LocalExecutor(deal(["4", "6"], workers=3)), {}
    for seat in range(3):
        executor.start(seat, SeenAtImport())
    while len(found) < 3 or any(message != Ended() for _, message in found.values()):
        seat, message = executor.receive()
        found[seat] = (found.get(seat, (message,))[0], message)
    assert {seat: seen for seat, (seen, _) in found.items()} == {0: ("4", 0.5, False), 1: ("6", 0.5, False), 2: ("4", 0.5, False)}
