"""The ids of rows as bytes: ranks in rising order, as gaps, a stream for each neighbourhood of the vocabulary.

A gap is the number of ranks skipped since the entry before it. Gaps grow with the rank, so they go to one of seven streams by
the rank they start from (below 4, 16, 64, 256, 1024, 4096, above): what zstd then sees is of one kind. A gap of 255 or more is
255 in its stream, and the rest of it is in three byte planes. The kernels are compiled by numba at their first call.
"""

import numba
import numpy as np

STREAMS = 7
NEAR = 4096
DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
BIT_PLACES = np.zeros(64, dtype=np.uint8)
BIT_PLACES[[((1 << place) * int(DE_BRUIJN) % 2**64) >> 58 for place in range(64)]] = range(64)
"""Where the one set bit of a word is: the top six bits of its product with a de Bruijn number tell."""

LIMITS = np.array([4**n for n in range(1, STREAMS)] + [2**31 - 1], dtype=np.int64)

Family = tuple[np.ndarray, np.ndarray]
"""Columns of a batch one behind the other, and where a document starts in each."""

Tables = tuple[np.ndarray, np.ndarray]
"""A vocabulary's heads [C, H] and order [V]."""


def choose_clusters(ids: np.ndarray, counts: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """[R] uint8, the cluster in which each row's ids cost least; `costs` as of `Vocabulary.costs`, the first one wins a tie."""
    if costs.shape[1] == 1:
        return np.zeros(len(counts), dtype=np.uint8)
    return _choose(ids, counts, costs)


def sort_by_rank(ids: np.ndarray, counts: np.ndarray, clusters: np.ndarray, ranks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each sorted entry was [N], and its rank [N]; `ranks` [V, C]."""
    return _sort(ids, counts, clusters, ranks, BIT_PLACES)


def encode_ranks(ranks: np.ndarray, counts: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Seven [n_s] uint8 streams of gaps and three [n_w] planes of what exceeds a byte, for ranks [N] that rise within each row."""
    gaps, sizes = np.empty((STREAMS, len(ranks)), dtype=np.uint8), np.zeros(STREAMS, dtype=np.int64)
    wide = np.empty(len(ranks), dtype=np.int32)
    escaped = _encode(ranks, counts, LIMITS, gaps, sizes, wide)
    planes = [(wide[:escaped] >> shift).astype(np.uint8) for shift in (0, 8, 16)]
    return [stream[:size].copy() for stream, size in zip(gaps, sizes, strict=True)], planes


def decode_ids(
    gaps: Family, wide: Family, counts: np.ndarray, first: np.ndarray, clusters: np.ndarray, tables: Tables, ids: np.ndarray
) -> None:
    """Write each row's ids into `ids` [R, K] from slot `first` [R] on."""
    _decode(*gaps, *wide, LIMITS, counts, first, clusters, *tables, ids)


@numba.njit(cache=True)
def _choose(ids, counts, costs):
    clusters = np.zeros(len(counts), dtype=np.uint8)
    total = np.zeros(costs.shape[1], dtype=np.uint16)  # 255 entries of cost 255 fit
    place = np.int64(0)
    for row in range(len(counts)):
        total[:] = 0
        for _ in range(counts[row]):
            cost = costs[np.uint64(ids[place])]
            for cluster in range(len(total)):
                total[cluster] += cost[cluster]
            place += 1
        clusters[row] = np.argmin(total)
    return clusters


@numba.njit(cache=True)
def _sort(ids, counts, clusters, ranks, bit_places):
    """Ranks below `NEAR` are marked in a bitmap and read off in order; the others, which are few, are inserted one by one."""
    where, sorted_ranks = np.empty(len(ids), dtype=np.int64), np.empty(len(ids), dtype=np.int32)
    marks, place_of = np.zeros(NEAR // 64, dtype=np.uint64), np.empty(NEAR, dtype=np.uint8)
    far = np.empty(256, dtype=np.uint32)  # rank and place: ranks are below 2^21, places below 2^8
    start = np.int64(0)
    for row in range(len(counts)):
        count, cluster = np.int64(counts[row]), clusters[row]
        far_count = 0
        for j in range(count):
            rank = np.uint32(ranks[np.uint64(ids[start + j]), cluster])
            if rank < np.uint32(NEAR):
                place_of[rank] = j
                marks[rank >> np.uint32(6)] |= np.uint64(1) << np.uint64(rank & np.uint32(63))
            else:
                _insert(far, far_count, (rank << np.uint32(8)) | np.uint32(j))
                far_count += 1
        end, near_end, word = start, start + count - far_count, 0
        while end < near_end:
            left = marks[word]
            while left != np.uint64(0):
                rank_here = np.int64(word * 64) + np.int64(bit_places[((left & (~left + np.uint64(1))) * DE_BRUIJN) >> np.uint64(58)])
                sorted_ranks[end], where[end] = rank_here, start + np.int64(place_of[rank_here])
                left &= left - np.uint64(1)
                end += 1
            marks[word] = np.uint64(0)
            word += 1
        for i in range(far_count):
            sorted_ranks[end], where[end] = far[i] >> np.uint32(8), start + np.int64(far[i] & np.uint32(255))
            end += 1
        start += count
    return where, sorted_ranks


@numba.njit(cache=True)
def _insert(keys, count, key):
    i = count
    while i > 0 and keys[i - 1] > key:
        keys[i] = keys[i - 1]
        i -= 1
    keys[i] = key


@numba.njit(cache=True)
def _encode(ranks, counts, limits, gaps, sizes, wide):
    place, escaped = 0, 0
    for row in range(len(counts)):
        following, stream = np.int64(0), 0  # one above the rank before
        for _ in range(counts[row]):
            while following >= limits[stream]:
                stream += 1
            gap = ranks[place] - following
            if gap >= 255:
                wide[escaped] = gap - 255
                escaped += 1
                gap = 255
            gaps[stream, sizes[stream]] = gap
            sizes[stream] += 1
            following = np.int64(ranks[place]) + 1
            place += 1
    return escaped


@numba.njit(cache=True)
def _decode(gaps, starts, wide, wide_starts, limits, counts, first, clusters, heads, order, ids):
    # unsigned indices spare numba's test for negative ones
    one, head = np.uint64(1), heads.shape[1]
    low, middle, high = wide_starts.astype(np.uint64)
    escaped, pointers = np.uint64(0), starts.astype(np.uint64)
    for row in range(len(counts)):
        out, cluster = ids[row], heads[clusters[row]]
        following, j = np.int64(0), np.uint64(first[row])
        stop = j + np.uint64(counts[row])
        for stream in range(len(limits)):
            pointer, limit = pointers[stream], limits[stream]
            while j < stop and following < limit:
                rank = following + np.int64(gaps[pointer])
                if gaps[pointer] == 255:
                    rank += np.int64(wide[low + escaped])
                    rank += np.int64(wide[middle + escaped]) << 8
                    rank += np.int64(wide[high + escaped]) << 16
                    escaped += one
                out[j] = order[np.uint64(rank - head)] if rank >= head else cluster[np.uint64(rank)]
                following = rank + 1
                pointer += one
                j += one
            pointers[stream] = pointer
            if j == stop:
                break
