"""What stage one asks of a teacher, whatever runs it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets


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
