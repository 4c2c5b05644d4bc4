"""Whose scale drifts: boundary RMS of structural tokens beside that of regular ones (paper, figure 5a)."""

from typing import Any

import numpy as np

from stage2_student.diagnostics import token_types
from stage2_student.diagnostics.boundary_rms import boundary_names
from stage2_student.diagnostics.by_type import by_type
from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.diagnostics.values import Value, number, ratio

DEFINITION = {
    **token_types.DEFINITION,
    "order": "a token is of the first type that fits, in this order",
    "boundary_regular_ratio": "mean RMS of document_boundary tokens over mean RMS of regular ones",
}


def attribution(table: TokenTable, types: np.ndarray) -> list[dict[str, Any]]:
    """One entry a boundary: n, mean and largest RMS of each type, and the ratio of document boundaries to regular tokens."""
    return [_boundary(name, table.rms[:, place], types) for place, name in enumerate(boundary_names(table.blocks))]


def _boundary(name: str, rms: np.ndarray, types: np.ndarray) -> dict[str, Any]:
    found = by_type(types, lambda members: _scale(rms[members]))
    return {
        "boundary": name,
        "by_type": found,
        "boundary_regular_ratio": ratio(found["document_boundary"]["mean"], found["regular"]["mean"]),
    }


def _scale(rms: np.ndarray) -> dict[str, Value]:
    if len(rms) == 0:
        return {"n": 0, "mean": "no tokens", "max": "no tokens"}
    return {"n": len(rms), "mean": number(rms.mean()), "max": number(rms.max())}
