"""The teacher through transformers: Qwen3, Qwen2 and Llama families, safetensors or GGUF, CPU or CUDA.

The body runs in the manifest's dtype, the head's product and the softmax in float32: bfloat16 logits alone
would cost more fidelity than all of the cache's coding. [tokens, vocabulary] never exists: the head works in chunks of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import ShardManifest, Targets
from pipeline.contract.process import prepare_cpu_process
from stage1_teacher.engines.base import TeacherInterface, require_finite, require_known_ids, require_possible_k, torch_threads
from stage1_teacher.engines.checkpoint import require_family
from stage1_teacher.scored import ScoredRows
from stage1_teacher.targets import keep_in_chunks
from stage1_teacher.teacher_files import TeacherFiles


class TransformersEngine:
    """One model on one device, the GPU where there is one and `device` does not say otherwise."""

    def __init__(self, files: TeacherFiles, shard: ShardManifest, device: str | None = None) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        if self.device.type == "cpu":
            prepare_cpu_process()
        self.device_name = torch.cuda.get_device_name() if self.device.type == "cuda" else "cpu"
        self.model = _load(files, getattr(torch, shard.teacher.dtype)).to(self.device).eval()
        self.head = self.model.get_output_embeddings().weight.detach().to(torch.float32)  # [V, D]
        self.vocab_size = self.head.shape[0]
        self.targets = shard.targets
        self.threads = shard.cache.threads
        self.tokens_per_batch = shard.cache.tokens_per_batch
        self.rows_per_chunk = shard.cache.rows_per_chunk
        require_possible_k(shard.targets, self.vocab_size)

    def interface(self) -> TeacherInterface:
        tensors = {"embed_tokens.weight": self.model.get_input_embeddings().weight, "norm.weight": self.model.model.norm.weight}
        if not self.model.config.tie_word_embeddings:
            tensors["lm_head.weight"] = self.model.get_output_embeddings().weight
        config = self.model.config.to_dict()
        config.pop("quantization_config", None)  # of the file it was read from; the tensors are plain
        return TeacherInterface({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, config)

    def score(self, documents: Sequence[np.ndarray], targets: Targets | None = None) -> list[CachedDocument]:
        """See `TeacherEngine.score`."""
        return self.score_many(documents, [targets or self.targets])[0]

    def score_many(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> list[list[CachedDocument]]:
        """See `TeacherEngine.score_many`.

        Documents of like length share a forward; padding is on the right, where causal attention never looks.
        """
        require_known_ids(documents, self.vocab_size)
        scored: list[dict[int, CachedDocument]] = [{} for _ in targets]
        for members in batches_by_length([len(ids) for ids in documents], self.tokens_per_batch):
            with torch_threads(self.threads):
                batch = self._score_batch([documents[position] for position in members], targets)
            for found, rows in zip(scored, batch, strict=True):
                found |= {position: require_finite(position, document) for position, document in zip(members, rows, strict=True)}
        return [[found[position] for position in range(len(documents))] for found in scored]

    @torch.inference_mode()
    def _score_batch(self, documents: list[np.ndarray], targets: Sequence[Targets]) -> list[Iterator[CachedDocument]]:
        lengths = [len(ids) for ids in documents]
        padded = torch.zeros(len(documents), max(lengths), dtype=torch.int64)  # [B, T]
        for row, ids in enumerate(documents):
            padded[row, : len(ids)] = torch.from_numpy(ids)
        hidden = self.model.model(padded.to(self.device), use_cache=False).last_hidden_state  # [B, T, D]
        has_label = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None] - 1  # [B, T]
        draws = torch.from_numpy(np.concatenate([row_draws(ids) for ids in documents])).to(self.device)
        rows = self._rows(hidden[has_label.to(self.device)], padded.roll(-1, 1)[has_label].to(self.device), draws, targets)
        return [each.documents(documents) for each in rows]

    def _rows(self, hidden: Tensor, labels: Tensor, draws: Tensor, targets: Sequence[Targets]) -> list[ScoredRows]:
        """Kept entries of R rows for each of the targets, from hidden states [R, D], a chunk of rows at a time."""
        rows = [ScoredRows(each) for each in targets]
        for chunk in keep_in_chunks(hidden, self._logits, labels, draws, targets, self.rows_per_chunk):
            for scored, kept in zip(rows, chunk, strict=True):
                scored.add(kept)
        return rows

    def _logits(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.head.T


def _load(files: TeacherFiles, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    # the config is passed on: a GGUF file is slow to parse, and would be once more
    config = require_family(files)
    return AutoModelForCausalLM.from_pretrained(files.folder, config=config, dtype=dtype, **files.load_arguments())


def batches_by_length(lengths: Sequence[int], tokens_per_batch: int) -> Iterator[list[int]]:
    """Positions of documents that share a forward: sorted by length, at most `tokens_per_batch` padded tokens, at least one document."""
    batch: list[int] = []
    for position in sorted(range(len(lengths)), key=lambda position: (lengths[position], position)):
        if batch and (len(batch) + 1) * lengths[position] > tokens_per_batch:
            yield batch
            batch = []
        batch.append(position)
    if batch:
        yield batch
