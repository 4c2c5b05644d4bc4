"""FORMAT.md is enough: a reader written from the page alone, in plain Python, reads what the product reads."""

import json
from bisect import bisect_right
from math import exp

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from reference_rows import kept_document, sampled_document
from stored import CODECS, codec, file_of

from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.sealed import sealed_bytes

VOCAB, SLOTS = 6000, 40
TARGETS = {
    "topk": Targets(k=255),
    "two temperatures": Targets(k=255, temperatures=[1, 2]),
    "sampled": Targets(mode="sampled", c=1 / SLOTS),
}


def read_page(columns: dict, row: int, targets: Targets, vocabulary: dict | None, temperature: float) -> list[list[tuple[int, float]]]:
    """(id, weight) of each row's entries, as FORMAT.md says it, with Python's lists."""
    document = {name: column[row] for name, column in columns.items()}
    return _plain(document, targets, temperature) if vocabulary is None else _compact(document, targets, vocabulary, temperature)


def _plain(d: dict, targets: Targets, temperature: float) -> list[list[tuple[int, float]]]:
    rows, place = [], 0
    for t, count in enumerate(d["counts"]):
        drawn = d["drawn"][t] if targets.mode == "sampled" else 0
        weights = [exp(x / temperature) for x in d["logprobs"][place : place + count]]
        certain = _to_mass(weights[: count - drawn], _mass(d, t, temperature))
        rows.append(list(zip(d["ids"][place : place + count], certain + [targets.c] * drawn, strict=True)))
        place += count
    return rows


def _compact(d: dict, targets: Targets, vocabulary: dict, temperature: float) -> list[list[tuple[int, float]]]:
    clusters = d.get("clusters", [0] * len(d["counts"]))
    ids = _ids(d, "entries", d["counts"], clusters, vocabulary)
    if "values" in d:
        multiples = _cut(d["values"], d["counts"])
        ones = [SLOTS - sum(row) for row in multiples]
        more = _ids(d, "ones", ones, clusters, vocabulary)
        heavy = [[(i, m * targets.c) for i, m in zip(a, b, strict=True)] for a, b in zip(ids, multiples, strict=True)]
        return [a + [(i, targets.c) for i in b] for a, b in zip(heavy, more, strict=True)]
    places, rows = [0] * 8, []
    for t, count in enumerate(d["counts"]):
        column = bisect_right([float(np.float32(e)) for e in (0.35, 0.7, 1.05, 1.4, 2.1, 2.8, 4.2)], -d["tail_logprob"][t])
        bytes_ = d[f"values_{column}"][places[column] : places[column] + count]
        places[column] += count
        several = targets.temperatures != [1.0]
        weights = [exp(-v / (16 * temperature)) if several else v**2 / 255**2 for v in bytes_]
        sampled = targets.mode == "sampled"
        certain = iter(_to_mass([w for w, v in zip(weights, bytes_, strict=True) if v > 0 or not sampled], _mass(d, t, temperature)))
        rows.append([(i, targets.c if sampled and v == 0 else next(certain)) for i, v in zip(ids[t], bytes_, strict=True)])
    return rows


def _ids(d: dict, prefix: str, counts: list[int], clusters: list[int], vocabulary: dict) -> list[list[int]]:
    streams = [iter(d[f"{prefix}_gaps_{s}"]) for s in range(7)]
    wide = iter(zip(*(d[f"{prefix}_wide_{n}"] for n in range(3)), strict=True))
    head, rows = len(vocabulary["heads"]) // vocabulary["clusters"], []
    for count, cluster in zip(counts, clusters, strict=True):
        x, ids = 0, []
        for _ in range(count):
            gap = next(streams[bisect_right([4, 16, 64, 256, 1024, 4096], x)])
            if gap == 255:
                low, middle, high = next(wide)
                gap += low + 256 * middle + 65536 * high
            rank = x + gap
            ids.append(vocabulary["heads"][cluster * head + rank] if rank < head else vocabulary["order"][rank - head])
            x = rank + 1
        rows.append(ids)
    assert all(next(stream, None) is None for stream in streams) and next(wide, None) is None
    return rows


def _mass(d: dict, t: int, temperature: float) -> float:
    return 1 - exp(d["tail_logprob" if temperature == 1 else f"tail_logprob_{temperature:g}"][t])


def _to_mass(weights: list[float], mass: float) -> list[float]:
    return [w * mass / sum(weights) for w in weights]


def _cut(values: list[int], counts: list[int]) -> list[list[int]]:
    ends = np.cumsum([0, *counts]).tolist()
    return [values[a:b] for a, b in zip(ends, ends[1:], strict=False)]


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("kind", TARGETS)
def test_a_reader_made_from_the_page(name, kind):
    targets, rng = TARGETS[kind], np.random.default_rng(5)
    if kind == "sampled":
        documents = [sampled_document(rng, rows, VOCAB, SLOTS) for rows in (1, 9)]
    else:
        documents = [kept_document(rng, counts, VOCAB, targets.other_temperatures) for counts in ([3], [255, 1, 40, 7, 120])]
    made = codec(name, targets, VOCAB)
    batch = pa.ipc.open_file(file_of(made, [made.encode(documents, 0)])).get_batch(0)
    columns = {column: batch.column(column).to_pylist() for column in batch.schema.names}
    vocabulary = _vocabulary(made.vocabulary.to_bytes()) if hasattr(made, "vocabulary") else None
    for row in range(len(documents)):
        for temperature in targets.all_temperatures:
            by_page, product = read_page(columns, row, targets, vocabulary, temperature), read_rows(made, Columns(batch), row, temperature)
            assert [len(entries) for entries in by_page] == product.counts.tolist()
            for t, entries in enumerate(by_page):
                ids, weights = product.ids[t, : len(entries)], product.weights[t, : len(entries)]
                assert [i for i, _ in entries] == ids.tolist()
                np.testing.assert_allclose([w for _, w in entries], weights, rtol=2e-5, atol=1e-8)


def _vocabulary(data: bytes) -> dict:
    return pa.ipc.open_file(data).read_all().to_pylist()[0]


def test_a_seal_checked_from_the_page():
    data = sealed_bytes({"name": "été", "parts": [1, 2.5, None], "inner": {"z": 1, "a": []}})
    value = json.loads(data)
    seal = value.pop("seal")
    body = (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
    assert list(json.loads(data))[-1] == "seal"
    assert xxhash.xxh3_128_hexdigest(body) == seal
