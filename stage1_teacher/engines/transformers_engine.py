"""The teacher through transformers: Qwen3, Qwen2 and Llama families, safetensors or GGUF, CPU or CUDA.

The body runs in the manifest's dtype, the head's product and the softmax in float32: bfloat16 logits alone
would cost more fidelity than all of the cache's coding. [tokens, vocabulary] never exists: the head works in chunks of rows.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.process import prepare_cpu_process
from stage1_teacher.engines.base import ScoringError, TeacherInterface
from stage1_teacher.targets import Kept, keep_topk
from stage1_teacher.teacher_files import TeacherFiles

FAMILIES = ("qwen3", "qwen2", "llama")


class TransformersEngine:
    """One model on one device."""

    def __init__(self, files: TeacherFiles, shard: ShardManifest) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            prepare_cpu_process()
        self.model = _load(files, getattr(torch, shard.teacher.dtype)).to(self.device).eval()
        self.head = self.model.get_output_embeddings().weight.detach().to(torch.float32)  # [V, D]
        self.vocab_size = self.head.shape[0]
        self.k = shard.targets.k
        self.tokens_per_batch = shard.cache.tokens_per_batch
        self.rows_per_chunk = shard.cache.rows_per_chunk
        if self.k > self.vocab_size:
            raise TeacherError(f"targets.k={self.k}: the teacher's vocabulary has {self.vocab_size} entries; use a smaller k")

    def interface(self) -> TeacherInterface:
        tensors = {"embed_tokens.weight": self.model.get_input_embeddings().weight, "norm.weight": self.model.model.norm.weight}
        if not self.model.config.tie_word_embeddings:
            tensors["lm_head.weight"] = self.model.get_output_embeddings().weight
        config = self.model.config.to_dict()
        config.pop("quantization_config", None)  # of the file it was read from; the tensors are plain
        return TeacherInterface({name: value.detach().cpu().contiguous() for name, value in tensors.items()}, config)

    def score(self, documents: Sequence[np.ndarray]) -> list[CachedDocument]:
        """See `TeacherEngine.score`.

        Documents of like length share a forward; padding is on the right, where causal attention never looks.
        """
        self._check_ids(documents)
        scored: dict[int, CachedDocument] = {}
        for members in batches_by_length([len(ids) for ids in documents], self.tokens_per_batch):
            for position, document in zip(members, self._score_batch([documents[position] for position in members]), strict=True):
                if not np.isfinite(document.label_logprob).all() or np.isnan(document.tail_logprob).any():
                    raise ScoringError(position, "the teacher gives a non-finite value; check its weights and dtype")
                scored[position] = document
        return [scored[position] for position in range(len(documents))]

    def _check_ids(self, documents: Sequence[np.ndarray]) -> None:
        for position, ids in enumerate(documents):
            if len(ids) and int(ids.max()) >= self.vocab_size:
                raise ScoringError(
                    position,
                    f"token id {int(ids.max())} is outside the teacher's {self.vocab_size} rows; "
                    "tokenizer and weights do not belong together",
                )

    @torch.inference_mode()
    def _score_batch(self, documents: list[np.ndarray]) -> Iterator[CachedDocument]:
        lengths = [len(ids) for ids in documents]
        padded = torch.zeros(len(documents), max(lengths), dtype=torch.int64)  # [B, T]
        for row, ids in enumerate(documents):
            padded[row, : len(ids)] = torch.from_numpy(ids)
        hidden = self.model.model(padded.to(self.device), use_cache=False).last_hidden_state  # [B, T, D]
        has_label = torch.arange(padded.shape[1]) < torch.tensor(lengths)[:, None] - 1  # [B, T]
        kept = self._keep(hidden[has_label.to(self.device)], padded.roll(-1, 1)[has_label].to(self.device))
        return _per_document(documents, kept)

    def _keep(self, hidden: Tensor, labels: Tensor) -> Kept:
        """Kept entries of R rows, from hidden states [R, D], a chunk of rows at a time."""
        rows = self.rows_per_chunk
        chunks = [
            keep_topk(hidden[start : start + rows].float() @ self.head.T, labels[start : start + rows], self.k)
            for start in range(0, len(hidden), rows)
        ]
        if not chunks:
            return Kept(
                labels.new_zeros(0, self.k), hidden.new_zeros(0, self.k).float(), hidden.new_zeros(0).float(), hidden.new_zeros(0).float()
            )
        return Kept(*(torch.cat(parts).cpu() for parts in zip(*chunks, strict=True)))


def _load(files: TeacherFiles, dtype: torch.dtype) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        config = AutoConfig.from_pretrained(files.folder, **files.load_arguments())
    except (ValueError, OSError) as error:
        line = str(error).splitlines()[0]
        raise TeacherError(
            f"teacher.model={files.folder}: its config cannot be read ({line}); supported are {', '.join(FAMILIES)}"
        ) from None
    if config.model_type not in FAMILIES:
        known = ", ".join(FAMILIES)
        raise TeacherError(f"teacher.model={files.folder}: family {config.model_type!r} is not supported; supported are {known}")
    # the config is passed on: a GGUF file is slow to parse, and would be once more
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


def _per_document(documents: list[np.ndarray], kept: Kept) -> Iterator[CachedDocument]:
    start = 0
    for ids in documents:
        rows = slice(start, start + len(ids) - 1)
        start = rows.stop
        yield CachedDocument(
            token_ids=ids,
            counts=np.full(len(ids) - 1, kept.ids.shape[1], dtype=np.uint8),
            tail_logprob=kept.tail_logprob[rows].numpy(),
            label_logprob=kept.label_logprob[rows].numpy(),
            ids=kept.ids[rows].flatten().numpy().astype(np.int32),
            logprobs=kept.logprobs[rows].flatten().numpy(),
        )
