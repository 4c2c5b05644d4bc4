"""Start and stop of vLLM: its settings, and what it does to the process it starts in."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from pydantic import ValidationError

from pipeline.contract.errors import TeacherError
from pipeline.contract.fingerprint import VLLM_SETTINGS
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.executors.devices import device_share
from stage1_teacher.engines.vllm_plugin import register_here
from stage1_teacher.teacher_files import TeacherFiles

CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE"
LLVMLITE = "llvmlite.binding.ffi"

MEMORY_FILLED = 0.9
"""Of a GPU's memory, by all workers that share it; the rest is for what CUDA takes. On a CPU vLLM goes by CPU_CACHE_GIB."""


def start(files: TeacherFiles, shard: ShardManifest, architecture: str) -> Any:
    """A `vllm.LLM` in this process.

    Raises:
        TeacherError: it cannot load the teacher.
    """
    on_cuda = torch.cuda.is_available()
    gc.collect()  # what is left of an earlier one
    if on_cuda:
        torch.cuda.empty_cache()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # in this process: it dies with it, and its exceptions are ours to see
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not on_cuda:
        os.environ.setdefault(CPU_CACHE_GIB, "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM

    register_here(architecture)
    with _kept_from_vllm():
        try:
            return LLM(**arguments(files, shard, architecture, on_cuda))
        except (ValueError, RuntimeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error).strip().splitlines()[0]
            raise TeacherError(f"teacher.model={files.folder}: vLLM cannot load it ({reason}); or use --engine transformers") from error


def stop(model: Any) -> None:
    """End a `vllm.LLM`, whatever state it is in; its memory is free once nobody holds it any more."""
    model.llm_engine.engine_core.shutdown()


def arguments(files: TeacherFiles, shard: ShardManifest, architecture: str, on_cuda: bool) -> dict[str, Any]:
    """For `vllm.LLM`: no prefix caching, nothing random, and memory within what the manifest says."""
    from vllm.config import PoolerConfig

    from stage1_teacher.engines.vllm_models import SETTINGS, TARGETS, TASK

    layout = shard.cache
    return {
        "model": str(files.folder),
        "runner": "pooling",
        "pooler_config": PoolerConfig(task=TASK),
        "hf_overrides": {"architectures": [architecture], "head_dtype": VLLM_SETTINGS["head_dtype"]},
        "additional_config": {SETTINGS: {TARGETS: [shard.targets.model_dump()], "rows_per_chunk": layout.rows_per_chunk}},
        "dtype": shard.teacher.dtype,
        "skip_tokenizer_init": True,
        "max_model_len": shard.documents.max_length,
        "max_num_batched_tokens": layout.tokens_per_batch,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": VLLM_SETTINGS["prefix_caching"],
        "tensor_parallel_size": layout.tensor_parallel,
        "distributed_executor_backend": "mp" if layout.tensor_parallel > 1 else "uni",
        "enforce_eager": not on_cuda,
        **({"gpu_memory_utilization": MEMORY_FILLED * device_share()} if on_cuda else {}),
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "seed": 0,
    }


@contextmanager
def _kept_from_vllm() -> Iterator[None]:
    """vLLM 0.32 on a CPU looks at every attribute of every module as it starts, and trips over one of llvmlite's (numba brings it);
    and it takes `torch.set_num_threads` away from everyone."""
    module, set_num_threads = sys.modules.pop(LLVMLITE, None), torch.set_num_threads
    try:
        yield
    finally:
        torch.set_num_threads = set_num_threads
        if module is not None:
            sys.modules[LLVMLITE] = module
