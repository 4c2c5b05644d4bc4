"""vLLM's own model classes with a pooler that keeps entries of the head's distribution in place of an embedding.

Only extension points: a plugin's architectures, a `Pooler`, and `PoolingParams.extra_kwargs` for the targets. The pooler gets the
hidden states of all documents of a step at once, works in chunks of rows, and gives back a packed int32 matrix a document.
"""

from collections.abc import Callable, Set
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.pooler import PoolingParamsUpdate
from vllm.model_executor.layers.pooler.abstract import Pooler
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.v1.pool.metadata import PoolingMetadata

from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.packed_rows import pack, slots, width
from stage1_teacher.targets import keep_in_chunks

TASK = "token_classify"
SETTINGS, TARGETS = "kept_entries", "targets"
"""Keys of vLLM's `additional_config` and of a request's `extra_kwargs`."""


class Span(NamedTuple):
    """What a step computes of one document: positions [start, end) of `ids` [T]."""

    ids: np.ndarray
    start: int
    end: int

    @property
    def rows(self) -> int:
        """Those that have a next token."""
        return max(0, min(self.end, len(self.ids) - 1) - self.start)


class KeptEntriesPooler(Pooler):
    """Hidden states of a step to a packed matrix [T-1, W] for every document that ends in it.

    The rows of a long document that comes in several steps are held in its pooling state; a step that starts at 0 clears them,
    since a document that was preempted starts again.
    """

    def __init__(self, head: Callable[[Tensor], Tensor | None], vocab_size: int, targets: list[Targets], rows_per_chunk: int) -> None:
        super().__init__()
        self.head, self.vocab_size, self.targets, self.rows_per_chunk = head, vocab_size, targets, rows_per_chunk

    def get_supported_tasks(self) -> Set[Any]:
        return {TASK}

    def get_pooling_updates(self, task: Any) -> PoolingParamsUpdate:
        return PoolingParamsUpdate(requires_token_ids=True)

    def forward(self, hidden_states: Tensor, pooling_metadata: PoolingMetadata) -> list[Tensor | None]:
        spans = _spans(pooling_metadata)
        packed = self._pack(hidden_states, spans, self._asked(pooling_metadata))
        finished = pooling_metadata.get_pooling_cursor().get_finished_mask()
        parts = packed.split([span.rows for span in spans])
        states = [state.hidden_states_cache for state in pooling_metadata.pooling_states]
        return [_join(held, part, span, end) for held, part, span, end in zip(states, parts, spans, finished, strict=True)]

    def _asked(self, metadata: PoolingMetadata) -> list[Targets]:
        """The targets of the step's requests, which are one call's; those of the start while vLLM measures its memory."""
        asked = [(params.extra_kwargs or {}).get(TARGETS) for params in metadata.pooling_params]
        if any(each != asked[0] for each in asked):
            raise RuntimeError("documents of different targets in one step")
        return [Targets.model_validate(each) for each in asked[0]] if asked[0] else self.targets

    def _pack(self, hidden: Tensor, spans: list[Span], targets: list[Targets]) -> Tensor:
        """[rows of all spans, W] int32, the targets side by side."""
        chosen = torch.from_numpy(_places(spans)).to(hidden.device)
        labels = _concatenated([span.ids[span.start + 1 : span.start + 1 + span.rows] for span in spans])
        draws = _concatenated([row_draws(span.ids)[span.start : span.start + span.rows] for span in spans])
        packed = torch.zeros(len(chosen), sum(width(each, self.vocab_size) for each in targets), dtype=torch.int32, device=hidden.device)
        if get_tensor_model_parallel_rank():
            self._take_part(hidden[chosen])
            return packed
        start = 0
        inputs = (hidden[chosen], self._logits, labels.to(hidden.device), draws.to(hidden.device), targets, self.rows_per_chunk)
        for chunk in keep_in_chunks(*inputs):
            rows = torch.cat([pack(kept, slots(each, self.vocab_size)) for kept, each in zip(chunk, targets, strict=True)], 1)
            packed[start : start + len(rows)] = rows
            start += len(rows)
        return packed

    def _logits(self, hidden: Tensor) -> Tensor:
        """[C, V] float32."""
        logits = self.head(hidden)
        assert logits is not None  # of the first device of a group
        return logits.float()

    def _take_part(self, hidden: Tensor) -> None:
        """Where a group of devices shares the head, each gives its part of every chunk's logits to the first, which answers."""
        for chunk in hidden.split(self.rows_per_chunk):
            self.head(chunk)


def _spans(metadata: PoolingMetadata) -> list[Span]:
    cursor, all_ids = metadata.get_pooling_cursor(), metadata.prompt_token_ids_cpu
    if all_ids is None:
        raise RuntimeError("vLLM brought no token ids to the pooler")
    ends, counts = cursor.seq_lens_cpu.tolist(), cursor.num_scheduled_tokens_cpu.tolist()
    lengths = metadata.prompt_lens.tolist()
    rows = [ids[:length].numpy() for ids, length in zip(all_ids, lengths, strict=True)]  # fewer while memory is measured
    return [Span(ids, end - count, end) for ids, end, count in zip(rows, ends, counts, strict=True)]


def _places(spans: list[Span]) -> np.ndarray:
    """Where in the step's hidden states the rows with a next token are."""
    starts = np.cumsum([0, *(span.end - span.start for span in spans[:-1])])
    return np.concatenate([np.arange(start, start + span.rows) for start, span in zip(starts, spans, strict=True)])


def _concatenated(parts: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))


def _join(held: list[Tensor], part: Tensor, span: Span, finished: bool) -> Tensor | None:
    """The document's rows once they are all there; until then they are held."""
    if span.start == 0:
        held.clear()
    if sum(map(len, held)) != span.start:
        raise RuntimeError(f"{sum(map(len, held))} rows of a document are held, {span.start} were computed: is prefix caching on?")
    if not finished:
        held.append(part.clone())
        return None
    whole = torch.cat([*held, part]) if held else part
    held.clear()
    return whole


class _KeptEntries:
    """A causal language model of vLLM whose pooler is the above; `is_pooling_model` lets vLLM take it as it is."""

    is_pooling_model = True

    def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)  # type: ignore[call-arg]
        settings = vllm_config.additional_config[SETTINGS]
        targets = [Targets.model_validate(each) for each in settings[TARGETS]]
        vocab_size = vllm_config.model_config.hf_config.vocab_size
        self.pooler = KeptEntriesPooler(self._head, vocab_size, targets, settings["rows_per_chunk"])

    def _head(self, hidden: Tensor) -> Tensor | None:
        return self.logits_processor(self.lm_head, hidden)  # type: ignore[attr-defined]


class Qwen3KeptEntries(_KeptEntries, Qwen3ForCausalLM): ...


class Qwen2KeptEntries(_KeptEntries, Qwen2ForCausalLM): ...


class LlamaKeptEntries(_KeptEntries, LlamaForCausalLM): ...
