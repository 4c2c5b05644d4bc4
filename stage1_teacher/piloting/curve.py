"""How much of a distribution's mass its k largest entries hold: the curve that k is chosen by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.contract.logit_cache.fidelity import BAND_EDGES
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.statistics import BAND_NAMES

CURVE_K = (1, 2, 4, 8, 16, 32, 64, 128, 255)


@dataclass(frozen=True)
class CurveBand:
    """The mass of the k largest over the rows of one band of entropy, a value for each k; nine rows in ten hold `p10` or more."""

    rows: int
    mean: list[float]
    p10: list[float]
    p50: list[float]


@dataclass(frozen=True)
class MassCurve:
    """The curve over all rows ("all") and by the teacher's entropy in nats; a band without rows is left out."""

    k: list[int]
    bands: dict[str, CurveBand]

    def as_json(self) -> dict[str, Any]:
        return {"k": self.k, "bands": {name: vars(band) for name, band in self.bands.items()}}


def mass_curve(documents: Sequence[CachedDocument]) -> MassCurve:
    """The curve of documents that were scored with the same k each, up to that k."""
    width = max(int(document.counts.max(initial=1)) for document in documents)
    k = [k for k in CURVE_K if k <= width]
    masses = np.concatenate([_masses(document, np.array(k), width) for document in documents])
    band_of = np.searchsorted(BAND_EDGES, np.concatenate([entropy(document) for document in documents]), side="right")
    rows = {"all": masses} | {name: masses[band_of == band] for band, name in enumerate(BAND_NAMES)}
    return MassCurve(k, {name: _band(part) for name, part in rows.items() if len(part)})


def entropy(document: CachedDocument) -> np.ndarray:
    """[T-1] nats, of a document as an engine gives it; a cache may be without."""
    assert document.entropy is not None
    return document.entropy


def _masses(document: CachedDocument, k: np.ndarray, width: int) -> np.ndarray:
    """[T-1, len(k)] float64."""
    running = np.exp(document.logprobs.astype(np.float64)).reshape(-1, width).cumsum(axis=1)
    return running[:, k - 1]


def _band(masses: np.ndarray) -> CurveBand:
    p10, p50 = np.quantile(masses, [0.1, 0.5], axis=0)
    return CurveBand(len(masses), masses.mean(axis=0).tolist(), p10.tolist(), p50.tolist())
