"""When a cached row is what the teacher says now: no further from the live row than its codec puts it and live puts live.

Let d be a distance. A captured row c was coded to the nearest code Q(c); the live row l would be coded to Q(l). Then

    d(l, Q(c)) <= d(l, c) + d(c, Q(c)) <= d(l, c) + d(c, Q(l)) <= 2 d(l, c) + d(l, Q(l))

The last term is measured on the very rows, by coding them anew. d(l, c) cannot be: the captured row is gone. It is taken to be
at most twice the largest distance between live scorings of these rows in several cuts into batches, and no less than float32
leaves open. So for each row, with d in nats for logprobs and the square root of KL for distributions,

    limit = coded + 2 (2 live + floor)

and the same for the largest KL that the manifest records of all rows at their capture.

A sample's weights are rounded at random, seeded by the document: equal but where a draw falls on the edge of an entry, which
moves a weight of c. Where two live scorings, coded, are m apart (total variation, mean over the rows of the document where it
is largest), n rows of a document have n m / c moves, and so at most 2 n m / c + 4 sqrt(n m / c) + 4.
"""

from dataclasses import dataclass

import numpy as np

from stage1_teacher.auditing.rows import Compared

SAFETY = 2.0
FLOAT32_NATS = 1e-5  # two sums of 150,000 float32 terms around logits of 30
FLOAT32_KL = 1e-6  # an entry at the edge of its quantiser's range may be coded or left out


@dataclass(frozen=True)
class Check:
    """One criterion, at the row where the cache is closest to its limit or furthest above it."""

    name: str
    unit: str
    value: float
    limit: float
    document: int
    row: int

    @property
    def ok(self) -> bool:
        return self.value <= self.limit

    def __str__(self) -> str:
        return (
            f"document {self.document}, row {self.row}: {self.name} {self.value:.3g} {self.unit}, "
            f"where codec and live against live explain {self.limit:.3g}"
        )


def checks(rows: Compared, sample_c: float | None, recorded_kl: float | None) -> list[Check]:
    """Every criterion of the rule, the worst first; `sample_c` is c of a sample, `recorded_kl` the manifest's maximum otherwise."""
    found = [_nats(rows, "label", "label", "label's logprob off by")]
    if "entropy" in rows.cached:
        found.append(_nats(rows, "entropy", "entropy", "entropy off by"))
    if sample_c is not None:
        found.append(_moved(rows, sample_c))
    else:
        found.append(_nats(rows, "gap", "kept", "another best entry, by"))
        found += [_kl(rows, key) for key in rows.cached if key.startswith("kl ")]
        found.append(_mean_kl(rows))
    if recorded_kl is not None:
        found.append(_recorded(rows, recorded_kl))
    return sorted(found, key=lambda check: -check.value / check.limit)


def live_nats(rows: Compared, key: str) -> float:
    """The tolerance for a difference of logprobs: how far captured and live rows may be apart before anything is coded."""
    return SAFETY * float(rows.control[key].max()) + FLOAT32_NATS


def live_kl(kl: float) -> float:
    """The same for a distance between distributions, the square root of a KL, where two live scorings have this one."""
    return SAFETY * kl**0.5 + FLOAT32_KL**0.5


def document_means(values: np.ndarray, document: np.ndarray) -> np.ndarray:
    """[documents] means of [R] values."""
    _, number, counts = np.unique(document, return_inverse=True, return_counts=True)
    return np.bincount(number, weights=values) / counts


def _worst(rows: Compared, name: str, unit: str, values: np.ndarray, limits: np.ndarray) -> Check:
    at = int(np.argmax(values / limits))
    return Check(name, unit, float(values[at]), float(limits[at]), int(rows.document[at]), int(rows.row[at]))


def _nats(rows: Compared, key: str, tolerance_of: str, name: str) -> Check:
    return _worst(rows, name, "nats", rows.cached[key], rows.coded[key] + 2 * live_nats(rows, tolerance_of))


def _kl(rows: Compared, key: str) -> Check:
    limits = (np.sqrt(rows.coded[key]) + 2 * live_kl(rows.control[key].max())) ** 2
    return _worst(rows, f"KL at temperature {key.removeprefix('kl ')}", "nats", rows.cached[key], limits)


def _recorded(rows: Compared, kl: float) -> Check:
    limit = (kl**0.5 + 2 * live_kl(rows.control["kl 1"].max())) ** 2
    return _worst(rows, "KL beside the largest recorded", "nats", rows.cached["kl 1"], np.full(len(rows.row), limit))


def _mean_kl(rows: Compared) -> Check:
    """Root means of squares are distances too; live, the mean of the document where it is largest. Named is the row that adds most."""
    mean, coded = (float(side["kl 1"].mean()) for side in (rows.cached, rows.coded))
    live = float(document_means(rows.control["kl 1"], rows.document).max())
    at = int(np.argmax(rows.cached["kl 1"] - rows.coded["kl 1"]))
    limit = (coded**0.5 + 2 * live_kl(live)) ** 2
    return Check("mean KL of all rows", "nats", mean, limit, int(rows.document[at]), int(rows.row[at]))


def _moved(rows: Compared, c: float) -> Check:
    """By document; named is its row that moved most."""
    documents, number, counts = np.unique(rows.document, return_inverse=True, return_counts=True)
    moves = np.bincount(number, weights=rows.moved) / c
    expected = counts * document_means(rows.moved_live, rows.document).max() / c
    limits = SAFETY * expected + 4 * np.sqrt(expected) + 4
    worst = int(np.argmax(moves / limits))
    inside = np.flatnonzero(number == worst)
    at = inside[np.argmax(rows.moved[inside])]
    name = f"weights moved in the document's {counts[worst]} rows,"
    return Check(name, "times c", float(moves[worst]), float(limits[worst]), int(documents[worst]), int(rows.row[at]))
