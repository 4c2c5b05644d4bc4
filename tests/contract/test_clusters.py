"""Clusters of rows: found again where they were put, fewer bytes, no id out of reach, harmless where there are none."""

import numpy as np
import pytest
from reference_rows import rows_of
from stored import file_of, through_file

from pipeline.contract.logit_cache.clusters import cluster_vocabulary
from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.rank_streams import choose_clusters
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets

VOCAB, KINDS, KEPT = 20_000, 6, 32


def rows_of_kinds(seed: int, rows: int, vocab: int = VOCAB) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of six kinds, each with 300 favourites of its own: ids [N], counts [R], kind of each row [R]."""
    favourites = np.random.default_rng(0).permutation(vocab)[: KINDS * 300].reshape(KINDS, -1)
    rng = np.random.default_rng(seed)
    weight = 1 / (np.arange(300) + 5.0)
    kinds = rng.integers(0, KINDS, rows)
    ids = [rng.choice(favourites[kind], KEPT, replace=False, p=weight / weight.sum()) for kind in kinds]
    return np.concatenate(ids).astype(np.int32), np.full(rows, KEPT, dtype=np.uint8), kinds


def fitted(clusters: int = 12, rows: int = 3000) -> Vocabulary:
    ids, counts, _ = rows_of_kinds(1, rows)
    return cluster_vocabulary(ids, counts, np.bincount(ids, minlength=VOCAB), clusters)


@pytest.fixture(scope="module")
def table() -> Vocabulary:
    return fitted()


def document(ids: np.ndarray, counts: np.ndarray) -> CachedDocument:
    rows = len(counts)
    flat = np.full(rows, -0.7, dtype=np.float32)
    return CachedDocument(np.arange(rows + 1, dtype=np.int32) % 7, counts, flat, flat, ids, np.full(len(ids), -4.0, dtype=np.float32))


def test_equal_rows_give_equal_clusters(table):
    assert fitted().to_bytes() == table.to_bytes()


def slow_clusters(ids: np.ndarray, counts: np.ndarray, token_counts: np.ndarray, clusters: int) -> np.ndarray:
    """[C, H] heads by Lloyd's algorithm in numpy: eight times, rows join the cheapest cluster, clusters count the ids of their rows."""
    rows = np.split(ids, np.cumsum(counts, dtype=int)[:-1])
    kept = np.bincount(ids, minlength=VOCAB) + token_counts * len(rows) / token_counts.sum()
    share = (kept + 1e-9) / (kept + 1e-9).sum()
    seen = np.zeros((VOCAB, clusters))
    for cluster, row in enumerate(np.linspace(0, len(rows) - 1, clusters).astype(int)):
        seen[rows[row], cluster] = 1
    for _ in range(8):
        costs = np.rint(-8 * np.log2((seen + 200 * share[:, None]) / (seen.sum(0) + 200))).clip(max=255)
        chosen = [int(costs[row].sum(0).argmin()) for row in rows]
        seen = np.zeros_like(seen)
        for row, cluster in zip(rows, chosen, strict=True):
            np.add.at(seen[:, cluster], row, 1)
    probability = (seen + 200 * share[:, None]) / (seen.sum(0) + 200)
    rank = np.argsort(np.argsort(-kept, kind="stable"), kind="stable")
    return np.array([sorted(range(VOCAB), key=lambda token: (-column[token], rank[token]))[:4096] for column in probability.T])


def test_clusters_are_the_slow_ones(table):
    ids, counts, _ = rows_of_kinds(1, 3000)
    np.testing.assert_array_equal(table.heads, slow_clusters(ids, counts, np.bincount(ids, minlength=VOCAB), 12))


def test_rows_of_a_kind_share_clusters_and_no_others(table):
    ids, counts, kinds = rows_of_kinds(2, 500)
    chosen = choose_clusters(ids, counts, table.costs)
    kinds_of = [set(kinds[chosen == cluster].tolist()) for cluster in range(table.clusters)]
    assert all(len(kinds) <= 1 for kinds in kinds_of)


def test_clusters_need_fewer_bytes_than_one_order(table):
    ids, counts, _ = rows_of_kinds(3, 500)
    by_frequency = Vocabulary.by_frequency(np.bincount(rows_of_kinds(1, 3000)[0], minlength=VOCAB))
    sizes = {}
    for name, used in (("ranks", by_frequency), ("clusters", table)):
        made = make_codec(name, Targets(), used)
        sizes[name] = file_of(made, [made.encode([document(ids, counts)], 0)]).size
    assert sizes["clusters"] < 0.85 * sizes["ranks"]


def test_every_id_comes_back_even_those_that_no_row_had(table):
    ids, counts = np.arange(VOCAB, dtype=np.int32), np.full(VOCAB // 100, 100, dtype=np.uint8)
    exact, made = document(ids, counts), make_codec("clusters", Targets(), table)
    back = read_rows(made, through_file(made, [exact]), 0)
    np.testing.assert_array_equal(np.sort(back.ids, axis=1), ids.reshape(-1, 100))


@pytest.mark.parametrize("mode", ["topk", "sampled"])
@pytest.mark.parametrize("vocab, rows", [(9, 5), (300, 2), (300, 0), (3000, 1), (5000, 40), (5000, 64)])
def test_few_rows_few_ids_and_empty_clusters_are_harmless(vocab, rows, mode):
    """64 clusters, so that most are empty; fewer ids than a head of 4096 has room for."""
    rng, kept = np.random.default_rng(0), min(vocab, 8)
    ids = np.concatenate([np.zeros(0, int), *(rng.permutation(vocab)[:kept] for _ in range(rows))]).astype(np.int32)
    counts = np.full(rows, kept, dtype=np.uint8)
    used = cluster_vocabulary(ids, counts, rng.integers(0, 3, vocab))
    assert used.heads.shape == ((64, min(vocab, 4096)) if rows else (1, 0))
    assert sorted(used.order.tolist()) == list(range(vocab))
    assert Vocabulary.from_bytes(used.to_bytes(), "here").to_bytes() == used.to_bytes()
    exact = document(*all_ids(vocab)) if mode == "topk" else drawn(*all_ids(vocab))
    made = make_codec("clusters", Targets(mode=mode, c=1 / 3), used)
    back = read_rows(made, through_file(made, [exact]), 0)
    got = [set(part[:count].tolist()) for part, count in zip(back.ids, back.counts)]
    assert got == [set(part.tolist()) for part in rows_of(exact, exact.ids)]


def all_ids(vocab: int) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(vocab - vocab % 3, dtype=np.int32), np.full(vocab // 3, 3, dtype=np.uint8)


def drawn(ids: np.ndarray, counts: np.ndarray) -> CachedDocument:
    plain = document(ids, counts)
    return CachedDocument(plain.token_ids, counts, plain.tail_logprob * 0, plain.label_logprob, ids, plain.logprobs, drawn=counts)


def test_rows_without_entries_have_no_say():
    ids, counts, _ = rows_of_kinds(1, 200)
    used = cluster_vocabulary(ids, np.concatenate([counts, np.zeros(50, np.uint8)]), np.zeros(VOCAB, int), 12)
    assert sorted(used.order.tolist()) == list(range(VOCAB))
