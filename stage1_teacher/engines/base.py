"""What stage one asks of a teacher, whatever runs it."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets

FAMILIES = ("qwen3", "qwen2", "llama")
"""`model_type` of the teachers whose blocks a student can be made of."""

DEVICE_FAULT = re.compile(r"CUDA error|CUDA driver error|CUBLAS_STATUS|CUDNN_STATUS|NCCL error|uncorrectable ECC", re.IGNORECASE)


@dataclass(frozen=True)
class TeacherInterface:
    """All that a student ever needs of its teacher.

    Attributes:
        tensors: `embed_tokens.weight` [V, D], `norm.weight` [D], and `lm_head.weight` [V, D] unless the teacher ties it.
        config: the teacher's Hugging Face config as JSON values.
    """

    tensors: dict[str, Any]
    config: dict[str, Any]


class ScoringError(TeacherError):
    """A document that the teacher cannot score; `position` is its place among the given ones."""

    def __init__(self, position: int, problem: str) -> None:
        super().__init__(f"document {position}: {problem}")
        self.position, self.problem = position, problem

    def __reduce__(self) -> Any:
        """It crosses processes."""
        return ScoringError, (self.position, self.problem)


class EngineDied(TeacherError):
    """The engine can score nothing any more; a new process may."""


def died_of(error: Exception) -> str | None:
    """What an engine died of, where `error` says that it did; None of any other error.

    The fault is vLLM's own process that has ended, or a GPU's: after one every later call in the process fails too. Out of memory is none.
    """
    import torch

    kinds = {kind.__name__ for kind in type(error).__mro__}
    dead = "EngineDeadError" in kinds or (isinstance(error, RuntimeError) and DEVICE_FAULT.search(str(error)))
    if isinstance(error, torch.OutOfMemoryError) or not (dead or isinstance(error, torch.AcceleratorError)):
        return None
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def require_possible_k(targets: Targets, vocab_size: int) -> None:
    """Hold a top-k against the vocabulary.

    Raises:
        TeacherError: there are fewer entries than are to be kept.
    """
    if targets.mode == "topk" and targets.k > vocab_size:
        raise TeacherError(f"targets.k={targets.k}: the teacher's vocabulary has {vocab_size} entries; use a smaller k")


def require_known_ids(documents: Sequence[np.ndarray], vocab_size: int) -> None:
    """Look at the ids before the teacher does.

    Raises:
        ScoringError: an id outside the vocabulary.
    """
    for position, ids in enumerate(documents):
        if len(ids) and int(ids.max()) >= vocab_size:
            raise ScoringError(
                position,
                f"token id {int(ids.max())} is outside the teacher's {vocab_size} rows; tokenizer and weights do not belong together",
            )


def require_length(documents: Sequence[np.ndarray], max_length: int) -> None:
    """Look at the lengths before an engine that was started for shorter ones does.

    Raises:
        ScoringError: a document is longer.
    """
    for position, ids in enumerate(documents):
        if len(ids) > max_length:
            raise ScoringError(position, f"has {len(ids)} tokens, documents.max_length={max_length} is the most; cut it, or set more")


def require_finite(position: int, document: CachedDocument) -> CachedDocument:
    """The document.

    Raises:
        ScoringError: a value of it is no number.
    """
    if not np.isfinite(document.label_logprob).all() or np.isnan(document.tail_logprob).any():
        raise ScoringError(position, "the teacher gives a non-finite value; check its weights and dtype")
    return document


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Torch's threads, and what they were before given back: sums run over threads, so the number decides the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class TeacherEngine(Protocol):
    """Scores token sequences; a new engine implements these and nothing else of stage one changes."""

    vocab_size: int
    """Rows of the output head: every id the teacher can give mass to."""

    device_name: str
    """What it runs on: "cpu", or a GPU's name."""

    def score(self, documents: Sequence[np.ndarray], targets: Targets | None = None) -> list[CachedDocument]:
        """Score whole documents ([T] token ids each), results in the order given; `targets` other than the shard's on request.

        The batches depend on the given documents alone.

        Raises:
            ScoringError: on a non-finite value or an id outside the vocabulary.
        """
        ...

    def score_many(self, documents: Sequence[np.ndarray], targets: Sequence[Targets]) -> list[list[CachedDocument]]:
        """The same for several targets at the cost of one pass of the teacher: what `score` gives for each of them, in their order."""
        ...

    def interface(self) -> TeacherInterface: ...
