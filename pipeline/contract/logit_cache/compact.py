"""Ranks, streams and clusters: entries in a third of the plain layout's bytes, decoded by compiled loops.

A row is one sorted list of entries, or two for a sample in the codecs `streams` and `clusters`: those that weigh 2 c and more,
with their multiples, and those that weigh c, which need no value and whose number is what is left of 1/c. Value bytes go to
eight columns by the row's tail mass, which is read first: flat rows have small values, peaked rows large ones.
"""

import numba
import numpy as np
import pyarrow as pa

from pipeline.contract.logit_cache.columns import DOCUMENT_FIELDS, Columns, field, record_batch, rounded, tail_name
from pipeline.contract.logit_cache.masses import SMALLEST_MASS, tails_with_dropped
from pipeline.contract.logit_cache.quantizers import NONE, LogDomain, SquareRoot, round_multiples, round_square_root
from pipeline.contract.logit_cache.rank_streams import (
    STREAMS,
    Chosen,
    RowsOf,
    choose_clusters,
    decode_ids,
    encode_ranks,
    sort_by_rank,
)
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets

ZSTD_LEVEL = 1  # the bytes are of one kind a column: higher levels only look for repetitions that are not there
TAIL_EDGES = np.array([0.35, 0.7, 1.05, 1.4, 2.1, 2.8, 4.2], dtype=np.float32)  # of -tail_logprob, nats
VALUE_COLUMNS = [f"values_{n}" for n in range(len(TAIL_EDGES) + 1)]


class CompactCodec:
    """`ranks`, `streams` or `clusters` under a cache's vocabulary."""

    def __init__(self, name: str, targets: Targets, vocabulary: Vocabulary) -> None:
        self.name, self.targets, self.vocabulary = name, targets, vocabulary
        self.zstd_level: int | None = ZSTD_LEVEL
        self.multiples = targets.mode == "sampled" and name != "ranks"
        self.quantizer = LogDomain() if targets.other_temperatures else SquareRoot()
        self.tables = {tau: self.quantizer.values(tau) for tau in targets.all_temperatures}
        half = pa.float16()
        rows = [field("label_logprob", half), field("counts", pa.uint8()), *[field("entropy", half)] * targets.entropy]
        rows += [] if self.multiples else [field(tail_name(tau), half) for tau in (1.0, *targets.other_temperatures)]
        rows += [field("clusters", pa.uint8())] * (vocabulary.clusters > 1)
        self.value_columns = ["values"] if self.multiples else VALUE_COLUMNS
        bytes_ = [*_stream_names("entries"), *self.value_columns, *(_stream_names("ones") if self.multiples else [])]
        self.schema = pa.schema([*DOCUMENT_FIELDS, *rows, *[field(name, pa.uint8()) for name in bytes_]])

    def encode(self, documents: list[CachedDocument], first_index: int) -> pa.RecordBatch:
        coded = [self._encode_one(document) for document in documents]
        return record_batch(self.schema, first_index, {name: [each[name] for each in coded] for name in self.schema.names[2:]})

    def _encode_one(self, document: CachedDocument) -> dict[str, np.ndarray]:
        """The document's part of every column."""
        all_codes = self._codes(document)
        ids, codes, counts = _with_code(document.ids, all_codes, document.counts)
        clusters = choose_clusters(ids, counts, self.vocabulary.costs)
        ranks, codes = sort_by_rank(ids, codes, counts, clusters, self.vocabulary.ranks)
        columns = {"token_ids": document.token_ids, "label_logprob": document.label_logprob, "clusters": clusters}
        columns |= {} if document.entropy is None else {"entropy": document.entropy}
        if self.multiples:
            return columns | self._two_lists(codes, ranks, counts)
        columns |= {tail_name(tau): rounded(tail, np.float16) for tau, tail in tails_with_dropped(document, all_codes > NONE).items()}
        values = dict(zip(VALUE_COLUMNS, _split(codes, counts, _tail_context(columns["tail_logprob"]), len(VALUE_COLUMNS)), strict=True))
        return columns | {"counts": counts} | values | _streams("entries", ranks, counts)

    def _codes(self, document: CachedDocument) -> np.ndarray:
        if self.targets.mode != "sampled":
            return self.quantizer.encode(document.logprobs)
        if self.multiples:
            multiples = round_multiples(document, self.targets.c)
            return np.where(multiples > 0, multiples, NONE)
        return round_square_root(document)

    def _two_lists(self, multiples: np.ndarray, ranks: np.ndarray, all_counts: np.ndarray) -> dict[str, np.ndarray]:
        values, several, ones, counts = _apart(multiples, ranks, all_counts)
        lists = _streams("entries", several, counts) | _streams("ones", ones, all_counts - counts)
        return {"counts": counts, "values": values} | lists

    def counts(self, columns: Columns) -> np.ndarray:
        counts = columns.flat("counts")[0]
        return columns.made("counts", lambda: counts + self._ones(columns)) if self.multiples else counts

    def _ones(self, columns: Columns) -> np.ndarray:
        """[R] uint8, entries of weight c: what the others leave of 1/c."""
        counts, multiples = columns.flat("counts")[0], columns.flat("values")[0]
        sums = np.concatenate([[0], np.cumsum(multiples, dtype=np.int64)])
        ends = np.cumsum(counts, dtype=np.int64)
        return (round(1 / self.targets.c) - (sums[ends] - sums[ends - counts])).astype(np.uint8)

    def fill(
        self, columns: Columns, documents: np.ndarray, temperature: float, ids: np.ndarray, weights: np.ndarray, places: np.ndarray
    ) -> None:
        rows, chosen = columns.flat("counts"), (documents, places)
        none = columns.made("none", lambda: np.zeros(len(rows[0]), dtype=np.uint8))
        clusters = columns.flat("clusters")[0] if "clusters" in columns else none
        self._fill_ids(columns, "entries", rows, none, clusters, chosen, ids)
        if self.multiples:
            ones = columns.made("ones", lambda: self.counts(columns) - rows[0])
            self._fill_ids(columns, "ones", (ones, rows[1]), rows[0], clusters, chosen, ids)
            _weigh_multiples(*columns.flat("values"), *rows, ones, self.targets.c, *chosen, weights)
            return
        tail, tail_there = self._tail(columns, 1.0), self._tail(columns, temperature)
        drawn_weight = self.targets.c if self.targets.mode == "sampled" else 0.0
        values, table = columns.family("values_"), self.tables[temperature]
        _weigh_documents(*values, tail, tail_there, TAIL_EDGES, *rows, table, drawn_weight, *chosen, weights)

    def _tail(self, columns: Columns, temperature: float) -> np.ndarray:
        name = tail_name(temperature)
        return columns.made(("tail", name), lambda: columns.flat(name)[0].astype(np.float32))

    def _fill_ids(
        self, columns: Columns, prefix: str, rows: RowsOf, first: np.ndarray, clusters: np.ndarray, chosen: Chosen, ids: np.ndarray
    ) -> None:
        gaps, wide = columns.family(f"{prefix}_gaps_"), columns.family(f"{prefix}_wide_")
        decode_ids(gaps, wide, rows, first, clusters, (self.vocabulary.heads, self.vocabulary.order), chosen, ids)


def _stream_names(prefix: str) -> list[str]:
    return [f"{prefix}_gaps_{n}" for n in range(STREAMS)] + [f"{prefix}_wide_{n}" for n in range(3)]


def _streams(prefix: str, ranks: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    gaps, wide = encode_ranks(ranks, counts)
    return dict(zip(_stream_names(prefix), [*gaps, *wide], strict=True))


def _split(codes: np.ndarray, counts: np.ndarray, context: np.ndarray, contexts: int) -> list[np.ndarray]:
    """The value bytes of each context's rows."""
    split, sizes = np.empty((contexts, len(codes)), dtype=np.uint8), np.zeros(contexts, dtype=np.int64)
    _distribute(codes, counts, context, split, sizes)
    return [column[:size].copy() for column, size in zip(split, sizes, strict=True)]


def _tail_context(tail_logprob: np.ndarray) -> np.ndarray:
    """[R] which of the value columns a row's bytes are in, from the tail as it is stored."""
    return np.searchsorted(TAIL_EDGES, -tail_logprob.astype(np.float32), side="right")


@numba.njit(cache=True)
def _with_code(ids, codes, counts):
    """Ids and codes of the entries that have a code, and their number in each row."""
    left_ids, left_codes, left = np.empty(len(ids), dtype=np.int32), np.empty(len(ids), dtype=np.uint8), np.zeros_like(counts)
    place, end = np.int64(0), np.int64(0)
    for row in range(len(counts)):
        before = end
        for i in range(place, place + np.int64(counts[row])):
            left_ids[end], left_codes[end] = ids[i], codes[i]
            end += np.int64(codes[i] >= 0)
        left[row] = end - before
        place += np.int64(counts[row])
    return left_ids[:end], left_codes[:end], left


@numba.njit(cache=True)
def _apart(multiples, ranks, counts):
    """Multiples and ranks of the entries of more than one, ranks of those of one, and how many of the former each row has."""
    values, several, ones = np.empty(len(ranks), dtype=np.uint8), np.empty(len(ranks), dtype=np.int32), np.empty(len(ranks), dtype=np.int32)
    left, end, ones_end, place = np.zeros_like(counts), np.int64(0), np.int64(0), np.int64(0)
    for row in range(len(counts)):
        before = end
        for i in range(place, place + np.int64(counts[row])):
            values[end], several[end], ones[ones_end] = multiples[i], ranks[i], ranks[i]
            end += np.int64(multiples[i] > 1)
            ones_end += np.int64(multiples[i] <= 1)
        left[row] = end - before
        place += np.int64(counts[row])
    return values[:end], several[:end], ones[:ones_end], left


@numba.njit(cache=True)
def _distribute(codes, counts, context, split, sizes):
    place = np.int64(0)
    for row in range(len(counts)):
        column, count = context[row], np.int64(counts[row])
        split[column, sizes[column] : sizes[column] + count] = codes[place : place + count]
        sizes[column] += count
        place += count


@numba.njit(cache=True)
def _weigh_documents(values, starts, tail, tail_there, edges, counts, row_starts, table, drawn_weight, documents, places, weights):
    for document, place in zip(documents, places):
        rows = slice(row_starts[document], row_starts[document + 1])
        _weigh(values, starts[document], tail[rows], tail_there[rows], edges, counts[rows], table, drawn_weight, weights[place])


@numba.njit(cache=True)
def _weigh(values, starts, tail, tail_there, edges, counts, table, drawn_weight, weights):
    pointers = starts.copy()
    for row in range(len(counts)):
        column, count = 0, np.int64(counts[row])
        while column < len(edges) and edges[column] <= -tail[row]:
            column += 1
        codes, out = values[pointers[column] : pointers[column] + count], weights[row]
        pointers[column] += count
        total = np.float32(0)
        for j in range(count):
            out[j] = table[codes[j]]
            total += out[j]
        mass = max(-np.expm1(np.float64(tail_there[row])), SMALLEST_MASS)
        factor = np.float32(mass / total) if total > 0 else np.float32(0)
        for j in range(count):
            out[j] *= factor
        if drawn_weight > 0:
            for j in range(count):
                if codes[j] == 0:
                    out[j] = drawn_weight


@numba.njit(cache=True)
def _weigh_multiples(multiples, starts, counts, row_starts, ones, c, documents, places, weights):
    for document, where in zip(documents, places):
        place, out = starts[document], weights[where]
        for t, row in enumerate(range(row_starts[document], row_starts[document + 1])):
            for j in range(counts[row]):
                out[t, j] = multiples[place] * c
                place += 1
            for j in range(counts[row], np.int64(counts[row]) + ones[row]):
                out[t, j] = c
