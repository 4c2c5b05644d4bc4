"""One tiny capture a session, by the real command line; every test reads it through a link in a root of its own."""

import gc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import capture, finish, new_root, start


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two cores are shared, and a subprocess must add up in the same order as this process."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def quick_collections(one_thread):
    """DeepSpeed's bfloat16 engine collects garbage eight times as it is made: leave what is imported by now out of it."""
    import deepspeed  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_cache(tmp_path_factory) -> Path:
    """A finished cache of 24 training and 5 validation documents. Read-only by agreement."""
    return capture(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def root(tmp_path, tiny_cache) -> Path:
    """An artifact root that holds that cache and no run."""
    return new_root(tmp_path / "artifacts", tiny_cache)


@pytest.fixture(scope="module")
def module_root(tmp_path_factory, tiny_cache) -> Path:
    """As `root`, shared by the tests of one file."""
    return new_root(tmp_path_factory.mktemp("runs") / "artifacts", tiny_cache)


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory, tiny_cache) -> Callable[[], dict[str, Any]]:
    """Starts two gloo processes that do everything that wants two; call it for what rank 0 found."""
    folder = tmp_path_factory.mktemp("two")
    script, out = Path(__file__).with_name("two_process_worker.py"), folder / "found.pt"
    root = new_root(folder / "artifacts", tiny_cache)
    running = start(["--standalone", "--nproc-per-node", "2", str(script), str(root), str(out)], "torch.distributed.run")

    @cache
    def found() -> dict[str, Any]:
        finish(running)
        return torch.load(out, weights_only=False)  # our own

    return found
