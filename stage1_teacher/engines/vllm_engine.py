"""The teacher through vLLM: continuous batching over documents of any length, the head in chunks inside vLLM's own worker.

vLLM runs in this process. Its model gives back packed rows of kept entries (`vllm_models.py`) and never a Python object a token.
Prefix caching is off, since results would depend on what was scored before; the head's product is float32.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import ShardManifest, Targets
from stage1_teacher.engines.base import (
    TeacherInterface,
    require_finite,
    require_known_ids,
    require_length,
    require_possible_k,
    torch_threads,
)
from stage1_teacher.engines.checkpoint import read_interface, require_family
from stage1_teacher.engines.vllm_plugin import ARCHITECTURES, register
from stage1_teacher.engines.vllm_self_check import by_transformers, require_equal
from stage1_teacher.packed_rows import width
from stage1_teacher.scored import ScoredRows
from stage1_teacher.teacher_files import TeacherFiles

CPU_CACHE_GIB = "VLLM_CPU_KVCACHE_SPACE"
LLVMLITE = "llvmlite.binding.ffi"


class VllmEngine:
    """One model on the devices that this process sees."""

    def __init__(self, files: TeacherFiles, shard: ShardManifest) -> None:
        if files.gguf_file:
            raise TeacherError(
                f"teacher.model={files.folder / files.gguf_file}: is a GGUF file, vLLM reads safetensors; use --engine transformers"
            )
        self.files, self.dtype = files, getattr(torch, shard.teacher.dtype)
        self.config = require_family(files)
        self.vocab_size = self.config.vocab_size
        require_possible_k(shard.targets, self.vocab_size)
        self.targets, self.max_length, self.threads = shard.targets, shard.documents.max_length, shard.cache.threads
        self.device_name = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        expected = by_transformers(files, shard)
        with torch_threads(self.threads):
            self.model = _start(files, shard, ARCHITECTURES[self.config.model_type])
        require_equal(self, expected, shard.teacher.dtype)

    def interface(self) -> TeacherInterface:
        return read_interface(self.files, self.config, self.dtype)

    def score(self, documents: Sequence[np.ndarray], targets: Targets | None = None) -> list[CachedDocument]:
        """See `TeacherEngine.score`."""
        return self.score_many(documents, [targets or self.targets])[0]

    def score_many(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> list[list[CachedDocument]]:
        """See `TeacherEngine.score_many`. A document of one token has no rows, and vLLM never sees it."""
        require_known_ids(documents, self.vocab_size)
        require_length(documents, self.max_length)
        with torch_threads(self.threads):
            packed = self._packed([ids for ids in documents if len(ids) > 1], targets)
        columns = np.cumsum([0, *(width(each, self.vocab_size) for each in targets)])
        return [
            [
                require_finite(position, _document(ids, packed, place, each, slice(*columns[number : number + 2])))
                for position, (ids, place) in enumerate(zip(documents, _places(documents), strict=True))
            ]
            for number, each in enumerate(targets)
        ]

    def _packed(self, documents: list[np.ndarray], targets: Sequence[Targets]) -> list[np.ndarray]:
        """[T-1, W] int32 a document, in their order."""
        from vllm import PoolingParams

        from stage1_teacher.engines.vllm_models import TARGETS, TASK

        if not documents:
            return []
        asked = PoolingParams(task=TASK, extra_kwargs={TARGETS: [each.model_dump() for each in targets]})
        prompts = [{"prompt_token_ids": ids.tolist()} for ids in documents]
        outputs = self.model.encode(prompts, pooling_params=asked, pooling_task=TASK, use_tqdm=False)
        packed = [output.outputs.data.numpy() for output in outputs]
        for ids, rows in zip(documents, packed, strict=True):
            if len(rows) != len(ids) - 1:
                raise TeacherError(f"vLLM gave {len(rows)} rows for a document of {len(ids)} tokens; report this, and use another version")
        return packed


def _places(documents: Sequence[np.ndarray]) -> list[int | None]:
    """Where each document stands among those of more than one token."""
    places = np.cumsum([len(ids) > 1 for ids in documents]) - 1
    return [int(place) if len(ids) > 1 else None for ids, place in zip(documents, places, strict=True)]


def _document(ids: np.ndarray, packed: list[np.ndarray], place: int | None, targets: Targets, columns: slice) -> CachedDocument:
    rows = ScoredRows(targets)
    if place is not None:
        rows.add_packed(np.ascontiguousarray(packed[place][:, columns]))
    return next(rows.documents([ids]))


def _start(files: TeacherFiles, shard: ShardManifest, architecture: str) -> Any:
    on_cuda = torch.cuda.is_available()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")  # in this process: it dies with it, and nothing is sent
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    if not on_cuda:
        os.environ.setdefault(CPU_CACHE_GIB, "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    from vllm import LLM

    register()  # again here: the package may be used without being installed
    with _kept_from_vllm():
        try:
            return LLM(**_arguments(files, shard, architecture, on_cuda))
        except (ValueError, RuntimeError) as error:
            reason = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error).strip().splitlines()[0]
            raise TeacherError(f"teacher.model={files.folder}: vLLM cannot load it ({reason}); or use --engine transformers") from error


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


def _arguments(files: TeacherFiles, shard: ShardManifest, architecture: str, on_cuda: bool) -> dict[str, Any]:
    """For `vllm.LLM`: no prefix caching, nothing random, and memory within what the manifest says."""
    from vllm.config import PoolerConfig

    from stage1_teacher.engines.vllm_models import SETTINGS, TARGETS, TASK

    return {
        "model": str(files.folder),
        "runner": "pooling",
        "pooler_config": PoolerConfig(task=TASK),
        "hf_overrides": {"architectures": [architecture], "head_dtype": "float32"},
        "additional_config": {SETTINGS: {TARGETS: [shard.targets.model_dump()], "rows_per_chunk": shard.cache.rows_per_chunk}},
        "dtype": shard.teacher.dtype,
        "skip_tokenizer_init": True,
        "max_model_len": shard.documents.max_length,
        "max_num_batched_tokens": shard.cache.tokens_per_batch,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": False,
        "enforce_eager": not on_cuda,
        "disable_log_stats": True,
        "seed": 0,
    }
