"""Ids as gaps: the compiled loops against plain Python, at every border of a stream and of a byte."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_rows import some_ids
from stored import vocabulary

from pipeline.contract.logit_cache.rank_streams import LIMITS, STREAMS, choose_clusters, decode_ids, encode_ranks, sort_by_rank
from pipeline.contract.logit_cache.vocabulary import Vocabulary

rows_of_ranks = st.lists(st.sets(st.integers(0, 30) | st.integers(0, 5000) | st.integers(0, 2**20 + 4095), max_size=40), max_size=6)


def flat(rows) -> tuple[np.ndarray, np.ndarray]:
    """Ranks [N], rising in each row, and counts [R]."""
    ranks = np.array([rank for row in rows for rank in sorted(row)], dtype=np.int32)
    return ranks, np.array([len(row) for row in rows], dtype=np.uint8)


def slow_encode(rows) -> tuple[list[list[int]], list[int]]:
    """Each stream's gaps, and what is beyond 255 of the wide ones."""
    streams: list[list[int]] = [[] for _ in range(STREAMS)]
    wide = []
    for row in rows:
        following = 0
        for rank in sorted(row):
            gap = rank - following
            stream = sum(following >= limit for limit in (4, 16, 64, 256, 1024, 4096))
            streams[stream].append(min(gap, 255))
            wide += [gap - 255] if gap >= 255 else []
            following = rank + 1
    return streams, wide


def decoded(streams, planes, counts, table: Vocabulary, clusters=None) -> list[list[int]]:
    """Ids of each row of the second document of a batch, from streams that begin somewhere in longer columns."""
    before = np.arange(3, 3 + STREAMS)
    columns = _joined([np.concatenate([np.full(n, 255, np.uint8), stream]) for n, stream in zip(before, streams)], before)
    wide = _joined([np.concatenate([np.full(2, 9, np.uint8), plane]) for plane in planes], np.array([2, 2, 2]))
    rectangle = np.full((2, len(counts), max(int(counts.max(initial=0)), 1) + 2), -1, dtype=np.int32)
    clusters = np.zeros(len(counts), dtype=np.uint8) if clusters is None else clusters
    batch, first, of_cluster = (np.concatenate([[9], part]).astype(np.uint8) for part in (counts, np.ones(len(counts)), clusters))
    rows, chosen = (batch, np.array([0, 1, len(batch)])), (np.array([1]), np.array([0]))
    decode_ids(columns, wide, rows, first, of_cluster, (table.heads, table.order), chosen, rectangle)
    ids = rectangle[0]
    assert (rectangle[1] == -1).all()
    assert (ids[:, 0] == -1).all() and all((row[1 + int(count) :] == -1).all() for row, count in zip(ids, counts))
    return [row[1 : 1 + int(count)].tolist() for row, count in zip(ids, counts)]


def _joined(columns: list[np.ndarray], starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One behind the other, as a batch's columns are given; the first document of the batch ends where the second one starts."""
    begins = np.cumsum([0, *map(len, columns[:-1])])
    return np.concatenate(columns), np.stack([begins, begins + starts])


def identity(size: int) -> Vocabulary:
    return Vocabulary(np.arange(size, dtype=np.int32), np.zeros((1, 0), dtype=np.int32))


def check(rows) -> None:
    ranks, counts = flat(rows)
    streams, planes = encode_ranks(ranks, counts)
    wanted, wide = slow_encode(rows)
    assert [stream.tolist() for stream in streams] == wanted
    assert [sum(int(plane[n]) << 8 * shift for shift, plane in enumerate(planes)) for n in range(len(wide))] == wide
    assert all(part.dtype == np.uint8 for part in (*streams, *planes)) and {len(plane) for plane in planes} == {len(wide)}
    assert decoded(streams, planes, counts, identity(2**21)) == [sorted(row) for row in rows]


@settings(max_examples=150, deadline=None)
@given(rows_of_ranks)
def test_streams_are_the_slow_ones_and_come_back(rows):
    check(rows)


def test_every_gap_that_needs_another_byte():
    gaps = [0, 1, 253, 254, 255, 256, 254 + 255, 255 + 255, 255 + 256, 255 + 2**16 - 1, 255 + 2**16, 2**18, 2**20 - 1]
    check([{gap} for gap in gaps] + [{5, 6 + gap} for gap in gaps] + [{4999, 5000 + gap} for gap in gaps])


def test_every_border_between_streams():
    borders = [int(limit) + more for limit in LIMITS[:-1] for more in (-2, -1, 0, 1)]
    check([{border, border + 1, border + 700} for border in borders] + [set(borders), set(range(255)), set(range(4000, 4255)), set()])


def test_no_rows_and_rows_of_nothing():
    for rows in ([], [set()], [set(), set(), set()]):
        check(rows)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=6), st.sampled_from([3, 300, 5000, 2**20]), st.booleans(), st.integers(0, 2**32 - 1))
def test_ids_come_back_under_any_vocabulary(counts, size, clustered, seed):
    rng, table = np.random.default_rng(seed), vocabulary(size, clustered)
    rows = [some_ids(rng, size, count) for count in counts]
    counts = np.array([len(row) for row in rows], dtype=np.uint8)
    ids = np.concatenate([np.zeros(0, dtype=np.int32), *rows])
    clusters = rng.integers(0, table.clusters, len(rows)).astype(np.uint8)
    codes = rng.integers(0, 256, len(ids)).astype(np.uint8)
    ranks, sorted_codes = sort_by_rank(ids, codes, counts, clusters, table.ranks)
    back, start = decoded(*encode_ranks(ranks, counts), counts, table, clusters), 0
    for cluster, row, count in zip(clusters, back, counts.tolist(), strict=True):
        here = slice(start, start + count)
        assert table.ranks[row, cluster].tolist() == ranks[here].tolist() and (np.diff(ranks[here]) > 0).all()
        assert dict(zip(row, sorted_codes[here].tolist())) == dict(zip(ids[here].tolist(), codes[here].tolist()))
        start += count


def test_every_border_of_sorting():
    """Sorted in registers by rows of any length, each with slots that no entry fills."""
    ids = np.array([4097, 64, 4096, 0, 4095, 63, 8192, 127, 4094, 128, 2**20 - 1, 65, 4159, 4160, 4032, 4031], dtype=np.int32)
    rows = [ids, ids[::-1], ids[:1], ids[2:3], ids[4:5], ids[:0], np.arange(4000, 4255)[::-1], np.arange(255), ids]
    counts = np.array([len(row) for row in rows], dtype=np.uint8)
    flat_ids = np.concatenate(rows).astype(np.int32)
    places = np.concatenate([np.arange(len(row)) for row in rows]).astype(np.uint8)
    ranks, codes = sort_by_rank(flat_ids, places, counts, np.zeros(len(rows), dtype=np.uint8), identity(2**20).ranks)
    np.testing.assert_array_equal(ranks, np.concatenate([np.sort(row) for row in rows]))
    np.testing.assert_array_equal(codes, np.concatenate([np.argsort(row) for row in rows]))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=6), st.integers(0, 2**32 - 1))
def test_the_cheapest_cluster_is_chosen_and_the_first_of_equals(counts, seed):
    rng = np.random.default_rng(seed)
    costs = rng.choice([0, 1, 255], (500, 7)).astype(np.uint8)
    costs[:, 6] = costs[:, 2]
    rows = [some_ids(rng, 500, count) for count in counts]
    chosen = choose_clusters(np.concatenate([np.zeros(0, np.int32), *rows]), np.array(counts, dtype=np.uint8), costs)
    assert chosen.dtype == np.uint8
    assert chosen.tolist() == [int(costs[row].sum(0, dtype=int).argmin()) for row in rows]


def test_one_cluster_needs_no_choice():
    assert choose_clusters(np.arange(3, dtype=np.int32), np.array([1, 2], np.uint8), np.full((3, 1), 9, np.uint8)).tolist() == [0, 0]


@pytest.mark.parametrize("clustered", [False, True])
def test_costs_are_eighths_of_a_bit(clustered):
    table = vocabulary(5000, clustered)
    assert table.costs.dtype == np.uint8
    np.testing.assert_array_equal(table.costs, (8 * np.log2(table.ranks + 1.0)).astype(int).clip(0, 255))
