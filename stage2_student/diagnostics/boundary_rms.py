"""The scale of the residual stream at every block boundary, token by token (paper, figures 4 and A1)."""

from typing import Any

import numpy as np

from stage2_student.diagnostics.by_type import by_type
from stage2_student.diagnostics.moments import histogram, moments, quantiles
from stage2_student.diagnostics.token_table import TokenTable

DEFINITION = (
    "RMS over the hidden dimension of each token's residual stream after each block; `start` is where block 0 begins (in post-norm "
    "after the entry norm). std of the population; kurtosis is Pearson's (3 for a normal distribution). One outlier among n tokens has "
    "a kurtosis of about n - 2 whatever its size: effective_outliers = n / (kurtosis + 3) says how many tokens carry it."
)


def boundary_names(blocks: int) -> list[str]:
    return ["start", *(f"block_{index}" for index in range(blocks))]


def boundary_rms(table: TokenTable, types: np.ndarray) -> list[dict[str, Any]]:
    """One entry a boundary; `types` [N] are places in TYPES."""
    return [{"boundary": name, **_scale(table.rms[:, place], types)} for place, name in enumerate(boundary_names(table.blocks))]


def _scale(rms: np.ndarray, types: np.ndarray) -> dict[str, Any]:
    return {
        **moments(rms),
        "quantiles": quantiles(rms),
        "histogram": histogram(rms),
        "by_type": by_type(types, lambda members: moments(rms[members])),
    }
