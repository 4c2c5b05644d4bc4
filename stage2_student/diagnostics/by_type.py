"""A measure for each token type: types without a token are there too, and say so."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stage2_student.diagnostics.token_types import TYPES


def by_type(types: np.ndarray, measure: Callable[[np.ndarray], dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """`measure` of the rows [n] of each type, by its name."""
    return {name: measure(np.nonzero(types == place)[0]) for place, name in enumerate(TYPES)}
