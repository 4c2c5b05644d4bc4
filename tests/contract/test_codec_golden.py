"""Format 1 to the byte: what a fixed document is coded as, column by column, before compression. A change here is another format."""

import numpy as np
import pytest
from reference_rows import ROW_TYPES, sample_row
from stored import codec
from xxhash import xxh3_64_hexdigest

from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets

VOCAB, SLOTS = 5000, 64
TOKEN_IDS = (np.arange(42) ** 3 % VOCAB).astype(np.int32)
GOLDEN = {
    ("raw", "topk"): "e5eb1a6b5b8b6bb2",
    ("ranks", "topk"): "e53f87b732a6be36",
    ("clusters", "topk"): "47756012f3799942",
    ("ranks", "temperatures"): "db44f89bfbe1361d",
    ("raw", "sampled"): "a9ba409dadb0a0ef",
    ("ranks", "sampled"): "2686a2feef578586",
    ("streams", "sampled"): "6826d9286ed6c2aa",
    ("clusters", "sampled"): "a0c4f7ec73c60f91",
}
TARGETS = {
    "topk": Targets(entropy=True),
    "temperatures": Targets(temperatures=[0.5, 2.0]),
    "sampled": Targets(mode="sampled", c=1 / SLOTS),
}


def kept_document(temperatures: list[float]) -> CachedDocument:
    """Rows of 0 to 40 entries, their logprobs far from where a rounding changes."""
    rows = np.arange(41)
    return CachedDocument(
        token_ids=TOKEN_IDS,
        counts=rows.astype(np.uint8),
        tail_logprob=(-rows / 8).astype(np.float32),
        label_logprob=(-rows / 4).astype(np.float32),
        ids=np.concatenate([(np.arange(row) * 977 + row * 31) % VOCAB for row in rows]).astype(np.int32),
        logprobs=np.concatenate([-(10 * np.minimum(np.arange(row), 24) + 3.2) / 16 for row in rows]).astype(np.float32),
        entropy=(rows / 16).astype(np.float32),
        other_tails={tau: (-rows / 32 / tau).astype(np.float32) for tau in temperatures},
    )


def sampled_document() -> CachedDocument:
    """Rows of four certain ids, and of a hundred of 0.002, of which each draws 12 or 13."""
    q = np.array([0.45, 0.2, 0.1, 0.05] + [0.002] * 100)
    made = [sample_row(np.arange(104) * 47, q, SLOTS, int(draw)) for draw in row_draws(TOKEN_IDS)]
    flat = {name: np.concatenate([row[name] for row in made]) for name in ("ids", "logprobs")}
    per_row = {name: np.array([row[name] for row in made], dtype=kind) for name, kind in ROW_TYPES.items()}
    return CachedDocument(TOKEN_IDS, label_logprob=np.zeros(41, dtype=np.float32), **flat, **per_row)


def digest(case: tuple[str, str]) -> str:
    """A hash of names and values of all columns."""
    name, mode = case
    document = sampled_document() if mode == "sampled" else kept_document(TARGETS[mode].other_temperatures)
    batch = codec(name, TARGETS[mode], VOCAB).encode([document], 7)
    parts = [column.to_numpy(zero_copy_only=False) for column in batch.columns[:2]]
    parts += [column.values.to_numpy() for column in batch.columns[2:]]
    return xxh3_64_hexdigest(b"".join(n.encode() + part.tobytes() for n, part in zip(batch.schema.names, parts, strict=True)))


@pytest.mark.parametrize("case", GOLDEN)
def test_columns_are_what_they_were(case):
    assert digest(case) == GOLDEN[case]
