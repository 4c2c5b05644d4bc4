"""What a pass of a student over documents leaves: a row a token, from which every record is made without the student."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

AGREES, DIFFERS, UNDECIDED = 1, 0, 2


@dataclass(frozen=True)
class TokenTable:
    """N input tokens; K blocks have K + 1 boundaries, the first where block 0 starts (after post-norm's entry norm).

    Attributes:
        document: [N] index in the split.
        position: [N] place in the document.
        token: [N] id.
        label: [N] id of the next token, -1 where a document (or the part kept of it) ends; the next four have a value elsewhere.
        ce: [N] float64, nats.
        kl: [N] float64, nats, of the run's tail mode at its temperature.
        agreement: [N] whether student and teacher have the same best guess; undecided where two entries of the teacher are equal.
        rms: [N, K + 1] float64, root mean square of the residual stream at each boundary.
        angle: [N, K] float64, arccos(cos(in, out)) / pi of each block.
        change: [N, K] float64, |out - in| / (|out| + |in|): 0 for an identity, whatever the scale.
    """

    document: np.ndarray
    position: np.ndarray
    token: np.ndarray
    label: np.ndarray
    ce: np.ndarray
    kl: np.ndarray
    agreement: np.ndarray
    rms: np.ndarray
    angle: np.ndarray
    change: np.ndarray

    def __len__(self) -> int:
        return len(self.document)

    @property
    def blocks(self) -> int:
        return self.angle.shape[1]

    @property
    def has_label(self) -> np.ndarray:
        return self.label >= 0

    def rows(self, chosen: np.ndarray) -> Self:
        """The chosen rows, by place or by mask."""
        return type(self)(**{field.name: getattr(self, field.name)[chosen] for field in fields(self)})

    @classmethod
    def joined(cls, parts: list[Any]) -> Self:
        return cls(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(cls)})
