"""The ladder's step 4, tried and left out: `python tests/benchmarks/candidate_lists.py`.

A drawn id could be a position in a pseudo-random list of candidates that encoder and decoder share: K ids drawn from a prior (how
often a rank of the row's cluster is drawn), of which the encoder takes one with probability q / prior ("minimal random coding",
Havasi et al. 2019). It costs log2 K bits whatever the id. Printed: what the drawn ids of the codec `clusters` cost today; what K
would have to be to cost less; and the bias at such K over 10^6 draws a row, against the noise that 10^6 draws leave.
"""

import argparse

import numpy as np
import torch
from cache_fidelity import where_bytes_go, written
from scored_documents import Teacher, score

from pipeline.contract.logit_cache.clusters import cluster_vocabulary
from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.quantizers import round_multiples
from pipeline.contract.logit_cache.rank_streams import choose_clusters
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.process import prepare_cpu_process

TARGETS = Targets(mode="sampled")
AT_ONCE = 2_000


def selected(q: np.ndarray, prior: np.ndarray, candidates: int, draws: int, rng: np.random.Generator) -> np.ndarray:
    """[V] how often each id was taken in `draws` draws from fresh lists."""
    cumulative, ratio, taken = np.cumsum(prior), q / prior, np.zeros(len(q), dtype=np.int64)
    for _ in range(draws // AT_ONCE):
        lists = np.searchsorted(cumulative, rng.random((AT_ONCE, candidates)) * cumulative[-1]).clip(max=len(q) - 1)
        weights = np.cumsum(ratio[lists], axis=1)
        place = (weights < rng.random((AT_ONCE, 1)) * weights[:, -1:]).sum(1).clip(max=candidates - 1)
        np.add.at(taken, lists[np.arange(AT_ONCE), place], 1)
    return taken


def bias(q: np.ndarray, taken: np.ndarray) -> tuple[float, float]:
    """Chi-square a degree of freedom over bins of falling q of equal mass (1 without bias), and the largest bin's relative error."""
    order = np.argsort(-q)
    bins = np.minimum(np.cumsum(q[order]) * 16, 15.999).astype(int)
    expected, found = (np.bincount(bins, weights=x[order], minlength=16) for x in (q * taken.sum(), taken.astype(float)))
    kept = expected > 0
    chi = (((found - expected) ** 2 / expected)[kept]).sum() / max(kept.sum() - 1, 1)
    return float(chi), float(np.abs(found / expected - 1)[kept].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibration", type=int, default=6_000)
    parser.add_argument("--tokens", type=int, default=2_000)
    parser.add_argument("--rows", type=int, default=4, help="rows whose bias is measured")
    parser.add_argument("--draws", type=int, default=1_000_000)
    a = parser.parse_args()
    prepare_cpu_process()
    teacher = Teacher()
    token_counts = np.zeros(teacher.engine.vocab_size, dtype=np.int64)
    calibration = []
    for ids in teacher.documents(a.calibration):
        np.add.at(token_counts, ids, 1)
        calibration.append(score(ids, list(teacher.logits(ids)), TARGETS))
    kept_ids, counts = (np.concatenate([getattr(document, name) for document in calibration]) for name in ("ids", "counts"))
    vocabulary = cluster_vocabulary(kept_ids, counts, token_counts)
    clusters = np.repeat(choose_clusters(kept_ids, counts, vocabulary.costs), counts)
    by_rank = np.bincount(vocabulary.ranks[kept_ids, clusters], minlength=int(vocabulary.ranks.max()) + 1) + 0.05
    held_out = teacher.documents(a.tokens)
    dense = [torch.cat(list(teacher.logits(ids))) for ids in held_out]
    documents = [score(ids, [logits], TARGETS) for ids, logits in zip(held_out, dense, strict=True)]
    codec = make_codec("clusters", TARGETS, vocabulary)
    batches, _ = written(codec, documents)
    tokens = sum(document.tokens for document in documents)
    ones = sum(int((round_multiples(document, TARGETS.c) == 1).sum()) for document in documents) / tokens
    bytes_now = where_bytes_go(codec, batches, tokens, {"ones": ("ones_gaps", "ones_wide")})["ones"]
    bits = 8 * bytes_now / ones
    print(f"{tokens} rows, c=1/128, documents {teacher.documents_hash}")
    print(f"{ones:.1f} ids of weight c a row in {bytes_now:.1f} bytes, {bits:.2f} bits an id: K must be below {2**bits:.0f}")
    rng = np.random.default_rng(0)
    for row in np.linspace(0, len(dense[0]) - 1, a.rows).astype(int):
        q = dense[0][row].double().softmax(-1).numpy()
        q[q >= TARGETS.c] = 0
        prior = by_rank[vocabulary.ranks[:, int(choose_clusters(*_entries(documents[0], row), vocabulary.costs)[0])]]
        for candidates in (2 ** int(bits), 256):
            chi, worst = bias(q / q.sum(), selected(q / q.sum(), prior / prior.sum(), candidates, a.draws, rng))
            print(f"row {row}, tail {q.sum():.2f}, K={candidates}: chi-square {chi:.1f} a degree of freedom, worst bin {worst:+.1%} off")


def _entries(document, row: int) -> tuple[np.ndarray, np.ndarray]:
    ids, _ = document.row(row)
    return ids, np.array([len(ids)], dtype=np.uint8)


if __name__ == "__main__":
    main()
