"""The ids of rows as bytes: ranks in rising order, as gaps, a stream for each neighbourhood of the vocabulary.

A gap is the number of ranks skipped since the entry before it. Gaps grow with the rank, so they go to one of seven streams by
the rank they start from (below 4, 16, 64, 256, 1024, 4096, above): what zstd then sees is of one kind. A gap of 255 or more is
255 in its stream, and the rest of it is in three byte planes. The kernels are compiled by numba at their first call.
"""

import numba
import numpy as np

STREAMS = 7
FREE = np.uint32(2**32 - 1)
"""The key of a slot without an entry: those of entries are below 2^29, a rank of at most 21 bits and a place of eight."""

LIMITS = np.array([4**n for n in range(1, STREAMS)] + [2**31 - 1], dtype=np.int64)

Family = tuple[np.ndarray, np.ndarray]
"""Columns of a batch one behind the other, and where each document starts in each."""

RowsOf = tuple[np.ndarray, np.ndarray]
"""Entries of each row of a batch [R], and where each document's rows start and the last one's end."""

Chosen = tuple[np.ndarray, np.ndarray]
"""Documents of a batch, and where in a rectangle each one goes."""

Tables = tuple[np.ndarray, np.ndarray]
"""A vocabulary's heads [C, H] and order [V]."""


def choose_clusters(ids: np.ndarray, counts: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """[R] uint8, the cluster in which each row's ids cost least; `costs` as of `Vocabulary.costs`, the first one wins a tie."""
    if costs.shape[1] == 1:
        return np.zeros(len(counts), dtype=np.uint8)
    return _choose(ids, counts, costs)


def sort_by_rank(
    ids: np.ndarray, codes: np.ndarray, counts: np.ndarray, clusters: np.ndarray, ranks: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's entries by rising rank: their ranks [N] int32 and codes [N] uint8; `ranks` [V, C]."""
    keys = np.empty((len(counts), int(counts.max(initial=0))), dtype=np.uint32)
    _keys(ids, counts, clusters, ranks, keys)
    keys.sort(axis=1)  # a rectangle: numpy sorts short rows in the processor's registers
    sorted_ranks, sorted_codes = np.empty(len(ids), dtype=np.int32), np.empty(len(ids), dtype=np.uint8)
    _unpack(keys, codes, counts, sorted_ranks, sorted_codes)
    return sorted_ranks, sorted_codes


def encode_ranks(ranks: np.ndarray, counts: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Seven [n_s] uint8 streams of gaps and three [n_w] planes of what exceeds a byte, for ranks [N] that rise within each row."""
    gaps, sizes = np.empty((STREAMS, len(ranks)), dtype=np.uint8), np.zeros(STREAMS, dtype=np.int64)
    wide = np.empty(len(ranks), dtype=np.int32)
    escaped = _encode(ranks, counts, LIMITS, gaps, sizes, wide)
    planes = [(wide[:escaped] >> shift).astype(np.uint8) for shift in (0, 8, 16)]
    return [stream[:size].copy() for stream, size in zip(gaps, sizes, strict=True)], planes


def decode_ids(
    gaps: Family, wide: Family, rows: RowsOf, first: np.ndarray, clusters: np.ndarray, tables: Tables, chosen: Chosen, ids: np.ndarray
) -> None:
    """Write each row's ids into `ids` [B, T, K] from slot `first` [R] on."""
    _decode_documents(*gaps, *wide, LIMITS, *rows, first, clusters, *tables, *chosen, ids)


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
def _keys(ids, counts, clusters, ranks, keys):
    """Rank and place of each entry in one number; free slots of a row come last."""
    start = np.int64(0)
    for row in range(len(counts)):
        count, cluster = np.int64(counts[row]), clusters[row]
        for j in range(count):
            keys[row, j] = (np.uint32(ranks[np.uint64(ids[start + j]), cluster]) << np.uint32(8)) | np.uint32(j)
        keys[row, count:] = FREE
        start += count


@numba.njit(cache=True)
def _unpack(keys, codes, counts, sorted_ranks, sorted_codes):
    start = np.int64(0)
    for row in range(len(counts)):
        count = np.int64(counts[row])
        of_row = codes[start : start + count]
        for j in range(count):
            sorted_ranks[start + j] = keys[row, j] >> np.uint32(8)
            sorted_codes[start + j] = of_row[np.uint64(keys[row, j] & np.uint32(255))]
        start += count


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
def _decode_documents(gaps, starts, wide, wide_starts, limits, counts, row_starts, first, clusters, heads, order, documents, places, ids):
    for document, place in zip(documents, places):
        rows = slice(row_starts[document], row_starts[document + 1])
        here, wide_here = starts[document], wide_starts[document]
        _decode(gaps, here, wide, wide_here, limits, counts[rows], first[rows], clusters[rows], heads, order, ids[place])


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
