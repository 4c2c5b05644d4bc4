"""Means with standard errors, over rows that come in documents: rows of one document are alike, so documents are what is counted."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from pipeline.contract.logit_cache.fidelity import BAND_EDGES
from pipeline.contract.logit_cache.statistics import BAND_NAMES
from stage1_teacher.auditing.differences import Differences
from stage1_teacher.auditing.rows import Compared

Figures = dict[str, Any]


def ratio(above: np.ndarray, below: np.ndarray, document: np.ndarray) -> tuple[float | None, float | None]:
    """Sum over sum of [R] values, and its standard error by the delta method over documents [R]; None where there is none."""
    total = below.sum()
    if not total:
        return None, None
    value = above.sum() / total
    residuals = np.bincount(document, weights=above - value * below)
    count = len(np.unique(document))
    error = (residuals @ residuals * count / (count - 1)) ** 0.5 / total if count > 1 else None
    return float(value), None if error is None else float(error)


def bands(entropy: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """ "all" and the bands of entropy that have rows, each with its [R] bool."""
    band_of = np.searchsorted(BAND_EDGES, entropy, side="right")
    yield "all", np.ones(len(entropy), dtype=bool)
    yield from ((name, band_of == band) for band, name in enumerate(BAND_NAMES) if (band_of == band).any())


def control_figures(rows: Compared) -> Figures:
    """Live against live: where the tolerance comes from."""
    found: Figures = {"top1_agreement": ratio(*_top1(rows.control), rows.document)[0]}
    for key in ("label", "kept"):
        found |= {f"{key}_logprob_difference_max": _max(rows.control[key]), f"{key}_logprob_difference_p99": _p99(rows.control[key])}
    if "kl 1" in rows.control:
        return found | {"kl_mean": float(rows.control["kl 1"].mean()), "kl_max": _max(rows.control["kl 1"])}
    return found | {"moved_mean": float(rows.moved_live.mean())}


def cache_figures(rows: Compared, wanted: np.ndarray) -> Figures:
    """The cache against live, of the `wanted` [R] rows; `_se` are standard errors, `_codec` what the codec alone would give."""
    document = rows.document[wanted]
    live, cached, coded = ({key: values[wanted] for key, values in side.items()} for side in (rows.live, rows.cached, rows.coded))
    found: Figures = {"rows": len(document), **_with_error("top1_agreement", *_top1(cached), document)}
    for key in ("label", "kept"):
        found |= {f"{key}_logprob_difference_max": _max(cached[key]), f"{key}_logprob_difference_p99": _p99(cached[key])}
    if "mass" not in live:
        found |= _with_error("kl_mean", cached["kl 1"], np.ones(len(document)), document)
        return found | {"kl_mean_codec": float(coded["kl 1"].mean()), "kl_max": _max(cached["kl 1"])}
    error, error_se = _gradient_error(live, cached, document)
    found |= {"gradient_error": error, "gradient_error_se": error_se, "gradient_error_codec": _gradient_error(live, coded, document)[0]}
    found |= _with_error("certain_bias", cached["restored"] - live["mass"], live["mass"], document)
    return found | {"moved_mean": float(rows.moved[wanted].mean())}


def _gradient_error(live: Differences, side: Differences, document: np.ndarray) -> tuple[float | None, float | None]:
    """Root of expected squared error over squared mass, of the whole vocabulary, and its standard error."""
    value, error = ratio(live["draws"] + side["added"], live["square"], document)
    if not value:
        return value, None
    return value**0.5, None if error is None else error / (2 * value**0.5)


def _with_error(name: str, above: np.ndarray, below: np.ndarray, document: np.ndarray) -> Figures:
    value, error = ratio(above, below, document)
    return {name: value, f"{name}_se": error}


def _top1(side: Differences) -> tuple[np.ndarray, np.ndarray]:
    """Agreeing rows and rows that have a best entry on both sides, as 0 and 1."""
    return np.nan_to_num(side["top1"]), 1.0 - np.isnan(side["top1"])


def _max(values: np.ndarray) -> float:
    return float(values.max())


def _p99(values: np.ndarray) -> float:
    return float(np.quantile(values, 0.99))
