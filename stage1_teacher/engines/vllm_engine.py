"""The teacher through vLLM: continuous batching over documents of any length, the head in chunks inside vLLM's own worker.

vLLM runs in this process. Its model gives back packed rows of kept entries (`vllm_models.py`) and never a Python object a token.
Prefix caching is off, since results would depend on what was scored before; the head's product is float32. A batch that does not
fit is scored again in smaller ones.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import ShardManifest, Targets
from stage1_teacher.engines.base import (
    ScoringError,
    TeacherInterface,
    require_finite,
    require_known_ids,
    require_length,
    require_possible_k,
    torch_threads,
)
from stage1_teacher.engines.checkpoint import read_interface, require_family
from stage1_teacher.engines.out_of_memory import halved, is_out_of_memory
from stage1_teacher.engines.vllm_plugin import ARCHITECTURES
from stage1_teacher.engines.vllm_self_check import by_transformers, require_equal
from stage1_teacher.engines.vllm_start import start, stop
from stage1_teacher.packed_rows import width
from stage1_teacher.scored import ScoredRows
from stage1_teacher.teacher_files import TeacherFiles

log = logging.getLogger(__name__)


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
        self.shard, self.layout = shard, shard.cache
        self.model: Any = None
        self._expected = by_transformers(files, shard)
        self._start()

    def _start(self) -> None:
        shard = self.shard.model_copy(update={"cache": self.layout})
        with torch_threads(self.threads):
            self.model = start(self.files, shard, ARCHITECTURES[self.config.model_type])
        ((found,),) = self._score([self._expected.ids], [self._expected.targets])
        require_equal(found, self._expected, shard.teacher.dtype)

    def _stop(self) -> None:
        stop(self.model)
        self.model = None

    def interface(self) -> TeacherInterface:
        return read_interface(self.files, self.config, self.dtype)

    def score(self, documents: Sequence[np.ndarray], targets: Targets | None = None) -> list[CachedDocument]:
        """See `TeacherEngine.score`."""
        return self.score_many(documents, [targets or self.targets])[0]

    def score_many(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> list[list[CachedDocument]]:
        """See `TeacherEngine.score_many`. A document of one token has no rows, and vLLM never sees it."""
        require_known_ids(documents, self.vocab_size)
        require_length(documents, self.max_length)
        try:
            return self._score(documents, targets)
        except ScoringError as error:
            suspected = error
        raise self._first_alone(documents, targets) or suspected

    def _first_alone(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> ScoringError | None:
        """The first document that is not finite when each is scored alone, by an engine that starts clean.

        What is no number stays in the blocks of vLLM's cache, and spoils whichever documents have them next.
        """
        self._stop()
        for position, ids in enumerate(documents):
            try:
                self._score([ids], targets)
            except ScoringError as error:
                self._stop()
                return ScoringError(position, error.problem)
        return None

    def _score(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> list[list[CachedDocument]]:
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
        """[T-1, W] int32 a document, in their order; out of memory, the same again by an engine that takes half as much at once."""
        while True:
            if self.model is None:
                self._start()
            try:
                return self._encode(documents, targets)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                problem = (str(error).strip() or type(error).__name__).splitlines()[0]
            self.layout = halved(self.layout, self.shard.cache)
            log.warning("engine=vllm: %s; again with %d tokens at once", problem, self.layout.tokens_per_batch)
            self._stop()

    def _encode(self, documents: list[np.ndarray], targets: Sequence[Targets]) -> list[np.ndarray]:
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
