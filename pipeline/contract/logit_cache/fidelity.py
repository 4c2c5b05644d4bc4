"""What keeping and coding cost, measured as rows are written: the exact entries against what the cache gives back.

    topk, threshold   KL(exact || restored) in nats, the kept ids and the tail as one outcome
    sampled           squared error of the restored weights as an estimate of the distribution, against that of the sample before
                      it was coded; and the mass of the certain entries before and after, whose ratio is a bias

Both by band of the teacher's entropy: below 0.1 nats, to 1, to 3, above.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np

from pipeline.contract.manifest.strict import Strict

BAND_EDGES = (0.1, 1.0, 3.0)
FIRST_DECADE, BINS_PER_DECADE = -9, 10
BINS = -FIRST_DECADE * BINS_PER_DECADE + 1


class Band(Strict):
    """Sums over the rows of one band of entropy.

    `error` is KL, or the squared error of the coded sample; `histogram` counts rows by floor(10 log10 error) from 1e-9 (the
    first bin holds all below) to 1. `plain_error` is a sample's expected squared error before it is coded, `square` the sum
    of q^2, `certain_mass` and `certain_restored` the mass of its certain entries.
    """

    rows: int = 0
    mass_kept: float = 0.0
    error: float = 0.0
    error_max: float = 0.0
    histogram: list[int] = [0] * BINS
    plain_error: float = 0.0
    square: float = 0.0
    certain_mass: float = 0.0
    certain_restored: float = 0.0


class Fidelity(Strict):
    """Four bands of rising entropy."""

    kind: Literal["kl", "squared_error"]
    bands: list[Band]

    @property
    def whole(self) -> Band:
        return merge_bands(self.bands)


class Measured(NamedTuple):
    """[R] float64 each, as in `Band`, and the entropy that chooses the band."""

    entropy: np.ndarray
    mass_kept: np.ndarray
    error: np.ndarray
    plain_error: np.ndarray
    square: np.ndarray
    certain_mass: np.ndarray
    certain_restored: np.ndarray


def summarize(measured: Sequence[Measured], sampled: bool) -> Fidelity:
    """Sort rows into bands and add up."""
    rows = Measured(*(np.concatenate(parts) for parts in zip(*measured, strict=True)))
    band_of = np.searchsorted(BAND_EDGES, rows.entropy, side="right")
    bands = [_band(Measured(*(part[band_of == band] for part in rows))) for band in range(len(BAND_EDGES) + 1)]
    return Fidelity(kind="squared_error" if sampled else "kl", bands=bands)


def _band(rows: Measured) -> Band:
    with np.errstate(divide="ignore"):
        decade = np.floor((np.log10(np.maximum(rows.error, 0)) - FIRST_DECADE) * BINS_PER_DECADE)
    bins = decade.clip(0, BINS - 1).astype(np.int64)
    return Band(
        rows=len(rows.error),
        error_max=float(rows.error.max(initial=0.0)),
        histogram=np.bincount(bins, minlength=BINS).tolist(),
        **{name: float(values.sum()) for name, values in rows._asdict().items() if name != "entropy"},
    )


def merge(parts: Sequence[Fidelity]) -> Fidelity:
    """Add up the fidelity of several shards, of one kind."""
    return Fidelity(kind=parts[0].kind, bands=[merge_bands(bands) for bands in zip(*(part.bands for part in parts), strict=True)])


def merge_bands(bands: Sequence[Band]) -> Band:
    names = ("rows", "mass_kept", "error", "plain_error", "square", "certain_mass", "certain_restored")
    return Band(
        **{name: sum(getattr(band, name) for band in bands) for name in names},
        error_max=max(band.error_max for band in bands),
        histogram=np.sum([band.histogram for band in bands], axis=0).tolist(),
    )


def quantile(band: Band, share: float) -> float | None:
    """Upper edge of the histogram bin that holds the `share` quantile of the rows' errors, or the largest error if that is less.

    None without rows.
    """
    if band.rows == 0:
        return None
    place = int(np.searchsorted(np.cumsum(band.histogram), share * band.rows))
    edge = float(10.0 ** (FIRST_DECADE + (place + 1) / BINS_PER_DECADE))
    return band.error_max if place == BINS - 1 else min(edge, band.error_max)
