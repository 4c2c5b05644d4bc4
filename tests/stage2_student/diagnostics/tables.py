"""Token tables written by hand for the tests of this folder."""

from typing import Any

import numpy as np

from stage2_student.diagnostics.token_table import AGREES, TokenTable


def table(lengths: list[int], blocks: int = 2, **columns: Any) -> TokenTable:
    """Documents of these lengths: RMS 1 everywhere, blocks that do nothing, CE and KL 1, full agreement; `columns` replace."""
    n = sum(lengths)
    position = np.concatenate([np.arange(length) for length in lengths])
    document = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths) - 1
    label = np.full(n, 5)
    label[ends] = -1
    given = {
        "document": document,
        "position": position,
        "token": np.full(n, 5),
        "label": label,
        "ce": np.ones(n),
        "kl": np.ones(n),
        "agreement": np.full(n, AGREES, dtype=np.uint8),
        "rms": np.ones((n, blocks + 1)),
        "angle": np.zeros((n, blocks)),
        "change": np.zeros((n, blocks)),
    }
    return TokenTable(**given | columns)
