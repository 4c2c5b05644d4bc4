"""Does a block do anything: how near it is to the identity, over all tokens and by type."""

from functools import partial
from typing import Any

import numpy as np

from stage2_student.diagnostics.by_type import by_type
from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.diagnostics.values import Value, number, ratio, without_numbers

DEFINITION = (
    "score = mean over tokens of 1 - |out - in| / (|out| + |in|) of the residual stream before and after a block: 1 for an identity, "
    "about 0.29 for an orthogonal output of the same length. It sees scale and direction; angular_distance sees direction only. "
    "scale = mean RMS after over mean RMS before."
)


def near_identity(table: TokenTable, types: np.ndarray) -> list[dict[str, Any]]:
    """One entry a block."""
    everything = np.arange(len(table))
    return [
        {
            "block": block,
            **_nearness(table, block, everything),
            "by_type": by_type(types, partial(_nearness, table, block)),
        }
        for block in range(table.blocks)
    ]


def _nearness(table: TokenTable, block: int, members: np.ndarray) -> dict[str, Value]:
    if len(members) == 0:
        return {"n": 0, **without_numbers(("score", "angular_distance", "scale"), "no tokens")}
    before, after = (table.rms[members, place].mean() for place in (block, block + 1))
    return {
        "n": len(members),
        "score": number(1 - table.change[members, block].mean()),
        "angular_distance": number(table.angle[members, block].mean()),
        "scale": ratio(number(after), number(before)),
    }
