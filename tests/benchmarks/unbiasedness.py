"""Is the mean of samples the distribution? `python tests/benchmarks/unbiasedness.py`: 10,000 draws of one row of 151,936 ids.

The row is a softmax of normals with a heavy head, its 10,000 draws are those of a document of 10,001 tokens. Weights are averaged
for every id, before the codecs and through `ranks` (square roots rounded at random) and `streams` (whole multiples of c), and
compared with the row in float64. A few minutes on two cores.

An id with q < c is drawn n times with probability q / c: the number of times is binomial, of standard error sqrt(qc - q^2) / sqrt(n).
"Within four standard errors for every id" cannot hold for all of 151,936: an id that is expected 0.01 times and is drawn once is ten
away. So ids expected ten times or more are held to four standard errors, and every rarer one to its exact tail probability, times
the number of them. How many of the former may be beyond is simulated with numpy's generator in the place of ours: they come in
clumps, since ids whose pieces of the line are at the same place modulo 1 are drawn together.
"""

import argparse
import time
from typing import NamedTuple

import numpy as np
import torch

from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.process import prepare_cpu_process
from stage1_teacher.scored import ScoredRows
from stage1_teacher.targets import keep_sampled

OFTEN = 10  # expected draws from which on a standard error means something
RANK_BINS = 12


def heavy_row(vocabulary: int, deviation: float = 3.0, seed: int = 0) -> torch.Tensor:
    """[V] float32 logits: normals, and five ids of about 0.3, 0.1, 0.05, 0.025 and 0.015."""
    generator = torch.Generator().manual_seed(seed)
    logits = deviation * torch.randn(vocabulary, generator=generator)
    heavy = torch.randperm(vocabulary, generator=generator)[:5]
    logits[heavy] = logits.logsumexp(0) + torch.tensor([0.6, 0.2, 0.1, 0.05, 0.03]).log()
    return logits


def exact(logits: torch.Tensor) -> np.ndarray:
    """[V] float64 probabilities."""
    return logits.double().softmax(-1).numpy()


def sample(logits: torch.Tensor, c: float, draws: int, seed: int = 0, chunk: int = 100) -> CachedDocument:
    """A document whose `draws` rows are all this one."""
    token_ids = np.random.default_rng(seed).integers(0, len(logits), draws + 1).astype(np.int32)
    rows, of_row = ScoredRows(Targets(mode="sampled", c=c)), torch.from_numpy(row_draws(token_ids))
    for part in of_row.split(chunk):
        rows.add(keep_sampled(logits.repeat(len(part), 1), torch.zeros(len(part), dtype=torch.int64), c, part))
    (document,) = rows.documents([token_ids])
    return document


class Weights(NamedTuple):
    """[N] entries of n rows: the row of each, its id and its weight."""

    row: np.ndarray
    ids: np.ndarray
    weight: np.ndarray


def before_coding(document: CachedDocument, q: np.ndarray, c: float) -> Weights:
    """Certain entries weigh q, drawn ones c."""
    row = np.repeat(np.arange(document.tokens), document.counts)
    place = np.arange(len(row)) - np.repeat(np.cumsum(document.counts, dtype=np.int64) - document.counts, document.counts)
    drawn = place >= np.repeat(document.counts.astype(np.int64) - document.drawn, document.counts)
    return Weights(row, document.ids, np.where(drawn, c, q[document.ids]))


def through(name: str, document: CachedDocument, c: float, vocabulary: int) -> Weights:
    """As a codec gives the rows back."""
    codec = make_codec(name, Targets(mode="sampled", c=c), Vocabulary.by_frequency(np.zeros(vocabulary)))
    rows = read_rows(codec, Columns(codec.encode([document], 0)), 0)
    filled = np.arange(rows.ids.shape[1]) < rows.counts[:, None]
    return Weights(np.nonzero(filled)[0], rows.ids[filled], rows.weights[filled].astype(np.float64))


def binomial_tail(n: int, p: np.ndarray, k: np.ndarray, terms: int = 400) -> np.ndarray:
    """P(X >= k) for X binomial(n, p); exact while what lies `terms` above k does not count."""
    n_, k_ = torch.tensor(float(n), dtype=torch.float64), torch.from_numpy(np.minimum(k, n).astype(np.float64))
    choose = (torch.lgamma(n_ + 1) - torch.lgamma(k_ + 1) - torch.lgamma(n_ - k_ + 1)).numpy()
    term = np.where(k <= n, np.exp(choose + k_.numpy() * np.log(p) + (n - k_.numpy()) * np.log1p(-p)), 0)
    total, odds = term.copy(), p / (1 - p)
    for more in range(1, terms):
        term = term * odds * np.maximum(n - k - more + 1, 0) / (k + more)
        total += term
    return np.minimum(total, 1)


class Verdict(NamedTuple):
    """How the mean weights of a row's ids with 0 < q < c stand.

    Attributes:
        often: ids expected ten times or more.
        beyond: those of them beyond four standard errors.
        beyond_by_chance: how many are on average, were the draws uniform.
        beyond_chance: how probable it is that as many or more are.
        rare: the other ids.
        rarest: smallest two-sided tail probability of a rare id, times the number of them.
        all_beyond, all_beyond_by_chance: as for `often`, for every id, by exact binomials.
    """

    often: int
    beyond: int
    beyond_by_chance: float
    beyond_chance: float
    rare: int
    rarest: float
    all_beyond: int
    all_beyond_by_chance: float


def judge(q: np.ndarray, mean: np.ndarray, n: int, c: float) -> Verdict:
    """Compare the mean weights [V] of n samples of the row q [V]."""
    tail = (q < c) & (q > 0)
    p, times = q[tail] / c, np.rint(mean[tail] * n / c)
    often, error = n * p >= OFTEN, np.sqrt(n * p * (1 - p))
    beyond = np.abs(times - n * p) > 4 * error
    chance = binomial_tail(n, p, np.floor(n * p + 4 * error) + 1) + binomial_tail(n, 1 - p, np.floor(n * (1 - p) + 4 * error) + 1)
    simulated = beyond_by_chance(p, n)
    rare_p, rare_times = p[~often], times[~often]
    above = binomial_tail(n, rare_p, rare_times)
    not_above = 1 - binomial_tail(n, rare_p, rare_times + 1)
    return Verdict(
        often=int(often.sum()),
        beyond=int(beyond[often].sum()),
        beyond_by_chance=float(simulated.mean()),
        beyond_chance=float((simulated >= beyond[often].sum()).mean()),
        rare=int((~often).sum()),
        rarest=min(1.0, float(2 * np.minimum(above, not_above).min(initial=1.0) * len(rare_p))),
        all_beyond=int(beyond.sum()),
        all_beyond_by_chance=float(chance.sum()),
    )


def beyond_by_chance(p: np.ndarray, n: int, rounds: int = 2000) -> np.ndarray:
    """[rounds] ids drawn often that are beyond four standard errors, for pieces p [T] of a line and n uniform draws."""
    often, ends = n * p >= OFTEN, np.cumsum(p)
    start, stop, p = (ends - p)[often] % 1, ends[often] % 1, p[often]
    rng, found = np.random.default_rng(0), np.zeros(rounds, dtype=np.int64)
    for simulation in range(rounds):
        draws = np.sort(rng.random(n))
        times = np.searchsorted(draws, stop) - np.searchsorted(draws, start) + n * (stop < start)
        found[simulation] = (np.abs(times - n * p) > 4 * np.sqrt(n * p * (1 - p))).sum()
    return found


def chi_square_of_ranks(q: np.ndarray, weights: Weights, n: int, c: float) -> tuple[float, int]:
    """p-value of the mean weights of bins of like probability, and the bins: Hotelling's, with the covariance the samples have.

    Ids of a systematic sample are not independent: a chi-square of the counts alone would be too small.
    """
    tail = np.flatnonzero((q < c) & (q > 0))
    falling = tail[np.argsort(-q[tail])]
    bin_of = np.full(len(q), RANK_BINS)
    bin_of[falling] = np.minimum(np.cumsum(q[falling]) / q[falling].sum() * RANK_BINS, RANK_BINS - 1).astype(np.int64)
    sums = np.bincount(weights.row * (RANK_BINS + 1) + bin_of[weights.ids], weights.weight, n * (RANK_BINS + 1)).reshape(n, -1)
    wanted = np.bincount(bin_of, q, RANK_BINS + 1)
    off = (sums - wanted)[:, : RANK_BINS - 1]  # the last bin is what is left, since a row's weights sum to about one
    statistic = n * off.mean(0) @ np.linalg.solve(np.cov(off.T), off.mean(0))
    half = torch.tensor([(RANK_BINS - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1])), RANK_BINS


class Certain(NamedTuple):
    """How the mean weights of ids with q >= c stand; z in standard errors of the weights seen, 0 where they never vary."""

    ids: int
    largest_z: float
    largest_relative: float
    mass_relative: float
    mass_z: float


def judge_certain(q: np.ndarray, weights: Weights, n: int, c: float) -> Certain:
    """The bias that coding leaves."""
    ids = np.flatnonzero(q >= c)
    slot = np.full(len(q), -1)
    slot[ids] = np.arange(len(ids))
    here = slot[weights.ids] >= 0
    table = np.zeros((n, len(ids)))
    table[weights.row[here], slot[weights.ids[here]]] = weights.weight[here]
    off = table.mean(0) - q[ids]
    z, mass_z = standard_errors(off, table), standard_errors(off.sum(keepdims=True), table.sum(1, keepdims=True))
    mass = off.sum() / q[ids].sum()
    return Certain(len(ids), float(np.abs(z).max()), float(np.abs(off / q[ids]).max()), float(mass), float(mass_z[0]))


def standard_errors(off: np.ndarray, seen: np.ndarray) -> np.ndarray:
    """How many standard errors of its column of `seen` [n, K] each of `off` [K] is."""
    varies = seen.std(0) > 1e-6 * seen.mean(0)
    return np.where(varies, off / np.where(varies, seen.std(0), 1) * np.sqrt(len(seen)), 0)


def report(name: str, q: np.ndarray, weights: Weights, n: int, c: float) -> None:
    mean = np.bincount(weights.ids, weights.weight, len(q)) / n
    v, s, (p_value, bins) = judge(q, mean, n, c), judge_certain(q, weights, n, c), chi_square_of_ranks(q, weights, n, c)
    print(f"{name}")
    print(f"  q < c, expected >= {OFTEN} times: {v.often} ids, {v.beyond} beyond 4 standard errors;", end=" ")
    print(f"by chance {v.beyond_by_chance:.2f}, and as many or more with probability {v.beyond_chance:.3f}")
    print(f"  q < c, rarer: {v.rare} ids, rarest outcome has probability {v.rarest:.3g} after Bonferroni")
    print(f"  q < c, all: {v.all_beyond} beyond 4 standard errors, {v.all_beyond_by_chance:.1f} by chance (exact binomials)")
    print(f"  q < c: chi-square over {bins} bins of rank, p = {p_value:.3f}")
    print(f"  q >= c: {s.ids} ids, largest |z| {s.largest_z:.2f}, largest relative error {s.largest_relative:.2e}")
    print(f"  q >= c: mass off by {s.mass_relative:+.2e} of itself (z {s.mass_z:+.2f})")
    print(f"  all weights of a row sum to {mean.sum():.8f} on average")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--draws", type=int, default=10_000)
    parser.add_argument("--slots", type=int, default=128, help="1 / c")
    parser.add_argument("--seed", type=int, default=0, help="of the document's tokens, and so of its draws")
    a = parser.parse_args()
    prepare_cpu_process()
    c, logits, started = 1 / a.slots, heavy_row(a.vocabulary), time.perf_counter()
    q = exact(logits)
    document = sample(logits, c, a.draws, a.seed)
    print(f"{a.draws} draws of a row of {a.vocabulary} ids, c = 1/{a.slots}, in {time.perf_counter() - started:.0f} s")
    print(f"certain: {(q >= c).sum()} ids of mass {q[q >= c].sum():.4f}", end="; ")
    print(f"drawn: {document.drawn.mean():.3f} a row, expected {q[q < c].sum() / c:.3f}")
    report("before coding", q, before_coding(document, q, c), a.draws, c)
    for name in ("ranks", "streams"):
        report(f"through {name}", q, through(name, document, c, a.vocabulary), a.draws, c)


if __name__ == "__main__":
    main()
