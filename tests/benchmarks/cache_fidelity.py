"""Bytes and errors of every target and codec on a real teacher: `python tests/benchmarks/cache_fidelity.py`.

Two tables. The ladder: bytes a target token of whole shards, where they go, and what they cost in KL or noise, for each
codec. The gradient: error of the loss's gradient at the logits against that of the full KL, for a student that is the
teacher's own layer 20 read through its head. Clusters are calibrated on other documents than those measured. Ids are spread
over 151,936. About fifteen minutes on two cores; every figure is a count or a ratio.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pyarrow as pa
import torch
from scored_documents import QWEN3_VOCABULARY, Teacher, score, spread

from pipeline.contract.logit_cache.clusters import cluster_vocabulary
from pipeline.contract.logit_cache.codec import Codec, make_codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.fidelity import summarize
from pipeline.contract.logit_cache.measure import measure
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.statistics import figures
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import batch_ranges
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.process import prepare_cpu_process

STUDENT_LAYER = 20
TARGETS = [
    *(Targets(mode="topk", k=k) for k in (16, 32, 64, 128)),
    *(Targets(mode="threshold", k=255, c=c) for c in (1e-2, 3e-3, 1e-3)),
    *(Targets(mode="sampled", c=1 / n) for n in (32, 64, 128, 254)),
]
LADDER = [TARGETS[2], TARGETS[3], TARGETS[9], TARGETS[8]]  # k=64, k=128, c=1/128, c=1/64
PARTS = {
    "tokens": ("token_ids",),
    "ids": ("ids", "gaps", "wide"),
    "values": ("logprobs", "values"),
    "rows": ("label", "tail", "entropy", "counts", "drawn"),
    "cluster": ("clusters",),
}


def name_of(targets: Targets) -> str:
    if targets.mode == "topk":
        return f"topk k={targets.k}"
    return f"{targets.mode} c={Fraction(targets.c).limit_denominator(1000) if targets.mode == 'sampled' else targets.c}"


def on_qwen3(document: CachedDocument, places: np.ndarray) -> CachedDocument:
    return replace(document, token_ids=places[document.token_ids], ids=places[document.ids])


class Gradients:
    """Errors of one target's gradient at the logits, against student minus teacher."""

    def __init__(self, vocab_size: int) -> None:
        self.mean_error, self.mean = np.zeros(vocab_size), np.zeros(vocab_size)
        self.squares, self.full_squares, self.rows = 0.0, 0.0, 0

    def add(self, student: np.ndarray, teacher: np.ndarray, estimate: np.ndarray) -> None:
        """[R, V] each: the student's and teacher's distributions, and the gradient that the kept entries give."""
        full = student - teacher
        error = estimate - full
        self.mean += full.sum(0)
        self.mean_error += error.sum(0)
        self.squares += float((error**2).sum())
        self.full_squares += float((full**2).sum())
        self.rows += len(full)

    def line(self) -> str:
        per_token = (self.squares / self.full_squares) ** 0.5
        return f"{per_token:9.3f} {np.linalg.norm(self.mean_error) / np.linalg.norm(self.mean):11.4f}"


def gradient(document: CachedDocument, codec: Codec, student: np.ndarray, tail: str) -> np.ndarray:
    """[R, V] gradient of the loss at the student's logits, from the document as the codec gives it back."""
    rows = read_rows(codec, Columns(codec.encode([document], 0)), 0)
    weights = np.zeros_like(student)
    row_of = np.repeat(np.arange(len(student)), rows.counts)
    filled = np.arange(rows.ids.shape[1]) < rows.counts[:, None]
    weights[row_of, rows.ids[filled]] = rows.weights[filled]
    if tail == "sampled":
        return student - weights
    kept = np.zeros(student.shape, dtype=bool)
    kept[row_of, rows.ids[filled]] = True
    inside = np.where(kept, student, 0)
    if tail == "renormalize":
        share = inside / np.maximum(inside.sum(1, keepdims=True), 1e-30)
        return share - weights / np.maximum(weights.sum(1, keepdims=True), 1e-30)
    outside = student - inside
    missing = rows.tail_mass[:, None] / np.maximum(outside.sum(1, keepdims=True), 1e-30)
    return np.where(kept, student - weights, outside * (1 - missing))


def written(codec: Codec, documents: Sequence[CachedDocument], tokens_per_batch: int = 8192) -> tuple[list[pa.RecordBatch], int]:
    """The documents' record batches, and the bytes of an IPC file of them."""
    batches = [codec.encode(list(documents[a:b]), a) for a, b in batch_ranges(documents, tokens_per_batch)]
    return batches, _file_bytes(codec, batches, codec.schema)


def _file_bytes(codec: Codec, batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> int:
    sink = pa.BufferOutputStream()
    level = codec.zstd_level
    options = pa.ipc.IpcWriteOptions(compression=None if level is None else pa.Codec("zstd", compression_level=level))
    with pa.ipc.new_file(sink, schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().size


def where_bytes_go(codec: Codec, batches: Sequence[pa.RecordBatch], tokens: int, parts: dict = PARTS) -> dict[str, float]:
    """Bytes a token of files that hold some of the columns."""
    empty = _file_bytes(codec, [], pa.schema([]))
    shares = {}
    for part, prefixes in parts.items():
        names = [name for name in codec.schema.names if any(name.startswith(p) or f"_{p}_" in name for p in prefixes)]
        schema = pa.schema([codec.schema.field(name) for name in names])
        shares[part] = (_file_bytes(codec, [batch.select(names) for batch in batches], schema) - empty) / tokens if names else 0.0
    return shares


def ladder(targets: Targets, documents: Sequence[CachedDocument], vocabularies: dict[str, Vocabulary]) -> None:
    """A line for each codec."""
    tokens = sum(document.tokens for document in documents)
    for name in ("plain", "ranks", "streams", "clusters"):
        if name == "streams" and targets.mode != "sampled":
            continue
        codec = make_codec(name, targets, vocabularies.get(name, vocabularies["ranks"]))
        batches, size = written(codec, documents)
        c = targets.c if targets.mode == "sampled" else None
        columns = [Columns(batch) for batch in batches]
        places = [(each, row) for each, batch in zip(columns, batches, strict=True) for row in range(batch.num_rows)]
        measured = [measure(document, read_rows(codec, each, row), c) for document, (each, row) in zip(documents, places, strict=True)]
        fidelity = summarize(measured, c is not None)
        found = figures(fidelity.kind, fidelity.whole)
        cost = f"KL {found['kl_mean']:.2e}" if c is None else f"noise {found['noise_ratio']:.3f}x, bias {found['certain_bias']:+.1e}"
        shares = where_bytes_go(codec, batches, tokens)
        parts = "  ".join(f"{part} {share:5.1f}" for part, share in shares.items())
        print(f"{name_of(targets):17s} {name:9s} {size / tokens:7.1f}   {parts}   {cost}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calibration", type=int, default=30_000, help="rows that clusters are fitted to")
    parser.add_argument("--tokens", type=int, default=21_000, help="rows that are measured")
    parser.add_argument("--gradient-tokens", type=int, default=4_000, help="rows of them whose dense gradients are compared")
    a = parser.parse_args()
    prepare_cpu_process()
    teacher = Teacher()
    places = spread(teacher.engine.vocab_size)
    token_counts = np.zeros(QWEN3_VOCABULARY, dtype=np.int64)
    kept: dict[str, list[CachedDocument]] = {name_of(t): [] for t in TARGETS}
    for ids in teacher.documents(a.calibration):
        np.add.at(token_counts, places[ids], 1)
        chunks = list(teacher.logits(ids))
        for targets in TARGETS:
            kept[name_of(targets)].append(on_qwen3(score(ids, chunks, targets), places))
    vocabularies = {
        name: {"ranks": Vocabulary.by_frequency(token_counts), "clusters": _fit(documents, token_counts)}
        for name, documents in kept.items()
    }
    rows = sum(document.tokens for document in kept[name_of(LADDER[0])])
    measured, gradients = _measure(teacher, a, places)
    tokens = sum(document.tokens for document in measured[name_of(LADDER[0])])
    print(f"{tokens} target tokens measured, {rows} others calibrated on, ids spread over {QWEN3_VOCABULARY}")
    print(f"documents {teacher.documents_hash}")
    print("\nThe ladder: bytes a target token, whole file and by part")
    for targets in LADDER:
        ladder(targets, measured[name_of(targets)], vocabularies[name_of(targets)])
    print("\nGradient at the logits, clusters codec: bytes, error relative to the full KL's, root mean square a token and of the mean")
    lines = []
    for targets in TARGETS:
        codec = make_codec("clusters", targets, vocabularies[name_of(targets)]["clusters"])
        size = written(codec, measured[name_of(targets)])[1] / tokens
        tails = ("sampled",) if targets.mode == "sampled" else ("bucket", "renormalize")
        lines += [(size, f"{size:7.1f}  {name_of(targets):20s} {tail:12s} {gradients[name_of(targets), tail].line()}") for tail in tails]
    print("\n".join(line for _, line in sorted(lines)))


def _fit(documents: Sequence[CachedDocument], token_counts: np.ndarray) -> Vocabulary:
    ids, counts = (np.concatenate([getattr(document, name) for document in documents]) for name in ("ids", "counts"))
    return cluster_vocabulary(ids, counts, token_counts)


def _measure(teacher: Teacher, a: argparse.Namespace, places: np.ndarray) -> tuple[dict, dict]:
    """Documents under every target, and gradients of the first of them."""
    measured: dict[str, list[CachedDocument]] = {name_of(t): [] for t in TARGETS}
    gradients: dict[tuple[str, str], Gradients] = {}
    seen = 0
    for ids in teacher.documents(a.tokens):
        chunks = list(teacher.logits(ids))
        plain = {name_of(targets): score(ids, chunks, targets) for targets in TARGETS}
        for name, document in plain.items():
            measured[name].append(on_qwen3(document, places))
        if seen < a.gradient_tokens:
            student = torch.cat([chunk.softmax(-1) for chunk in teacher.logits(ids, STUDENT_LAYER)]).numpy()
            full = torch.cat([chunk.softmax(-1) for chunk in chunks]).numpy()
            for targets in TARGETS:
                codec = _own_ids(targets, len(places))
                for tail in ("sampled",) if targets.mode == "sampled" else ("bucket", "renormalize"):
                    entry = gradients.setdefault((name_of(targets), tail), Gradients(full.shape[1]))
                    entry.add(student, full, gradient(plain[name_of(targets)], codec, student, tail))
        seen += len(ids) - 1
    return measured, gradients


def _own_ids(targets: Targets, vocab_size: int) -> Codec:
    """A codec over the teacher's own ids: what a codec loses does not depend on how ids are named."""
    return make_codec("streams", targets, Vocabulary.by_frequency(np.zeros(vocab_size)))


if __name__ == "__main__":
    main()
