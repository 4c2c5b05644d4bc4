"""Numbers of a record: a float, or a text that stands where the number would and says why there is none."""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

Value = float | int | str

NOT_FINITE = "not finite"


def number(value: Any) -> Value:
    """`value` as a record holds it."""
    found = float(value)
    return found if math.isfinite(found) else NOT_FINITE


def without_numbers(names: Iterable[str], why: str) -> dict[str, Value]:
    """One reason in the place of several numbers."""
    return dict.fromkeys(names, why)


def ratio(above: Value, below: Value) -> Value:
    """Above over below; where one has no number, its reason."""
    for value in (above, below):
        if isinstance(value, str):
            return value
    return number(float(above) / float(below)) if below else "division by zero"


def mean_with_errors(values: np.ndarray, documents: np.ndarray) -> dict[str, Value]:
    """Mean of [N] values, its standard error over tokens, and over documents, whose tokens are not independent.

    The second is the cluster-robust one: sqrt(D / (D - 1) * sum over documents of (sum of its deviations)^2) / N.
    """
    n = len(values)
    if n == 0:
        return {**without_numbers(("mean", "standard_error", "standard_error_documents"), "no tokens"), "n": 0, "documents": 0}
    deviations = values.astype(np.float64) - values.mean(dtype=np.float64)
    _, place = np.unique(documents, return_inverse=True)
    sums = np.bincount(place, weights=deviations)
    count = len(sums)
    by_document = number(math.sqrt(count / (count - 1) * float(np.sum(sums**2))) / n) if count > 1 else "one document"
    by_token = number(math.sqrt(float(np.sum(deviations**2)) / (n - 1) / n)) if n > 1 else "one token"
    return {
        "mean": number(values.mean(dtype=np.float64)),
        "standard_error": by_token,
        "standard_error_documents": by_document,
        "n": n,
        "documents": count,
    }
