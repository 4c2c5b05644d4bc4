"""How fast rows are coded and decoded, on one core: `python tests/benchmarks/cache_speed.py`.

Against the plain layout (int32 ids, float16 logprobs, zstd-3) and against `to_pylist`, interleaved in one process; ratios are
medians with their spread, tokens a second the best of the rounds. Seconds are of the processor: other processes do not count,
but for a core they share. Decoding is from the bytes of a file to padded arrays, decompression and
all; documents of like length share a rectangle, so that empty room is not measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
from cache_fidelity import written
from scored_documents import QWEN3_VOCABULARY, Teacher, score, spread

from pipeline.contract.logit_cache.clusters import cluster_vocabulary
from pipeline.contract.logit_cache.codec import Codec, make_codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.padded import PaddedDocuments
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.process import prepare_cpu_process

DOCUMENTS_A_BATCH = 8


class File:
    """Documents in one codec, as the bytes of a file."""

    def __init__(self, codec: Codec, documents: Sequence[CachedDocument]) -> None:
        self.codec, self.documents = codec, documents
        self.lengths = np.array([len(document.token_ids) for document in documents], dtype=np.int32)
        sink = pa.BufferOutputStream()
        level = codec.zstd_level
        options = pa.ipc.IpcWriteOptions(compression=None if level is None else pa.Codec("zstd", compression_level=level))
        with pa.ipc.new_file(sink, codec.schema, options=options) as writer:
            for batch in written(codec, documents)[0]:
                writer.write_batch(batch)
        self.data = sink.getvalue()

    def encode(self) -> None:
        written(self.codec, self.documents)

    def decode(self) -> None:
        first = 0
        reader = pa.ipc.open_file(self.data, options=pa.ipc.IpcReadOptions(use_threads=False))
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            columns = Columns(batch)
            for start in range(0, batch.num_rows, DOCUMENTS_A_BATCH):
                rows = range(start, min(start + DOCUMENTS_A_BATCH, batch.num_rows))
                self._padded(columns, rows, self.lengths[first + rows.start : first + rows.stop])
            first += batch.num_rows

    def _padded(self, columns: Columns, rows: range, lengths: np.ndarray) -> None:
        counts, starts = self.codec.counts(columns), columns.flat("label_logprob")[1]
        width = int(counts[starts[rows.start] : starts[rows.stop]].max(initial=0))
        PaddedDocuments.empty(lengths, width, np.empty).fill(range(len(rows)), self.codec, 1.0, columns, rows)

    def to_pylist(self) -> None:
        """Python lists of the first batch's ids and logprobs; of plain files only."""
        batch = pa.ipc.open_file(self.data).get_batch(0)
        batch.column("ids").to_pylist(), batch.column("logprobs").to_pylist()

    @property
    def first_tokens(self) -> int:
        return int(sum(self.lengths[: pa.ipc.open_file(self.data).get_batch(0).num_rows] - 1))


def seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def report(name: str, per_token: Sequence[float], floor: Sequence[float]) -> None:
    ratios = sorted(base / mine for base, mine in zip(floor, per_token, strict=True))
    print(
        f"{name:26s} {1 / min(per_token):12,.0f} tokens/s   {statistics.median(ratios):7.2f}x plain ({ratios[0]:.2f} to {ratios[-1]:.2f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=6_000, help="rows that are scored")
    parser.add_argument("--copies", type=int, default=4, help="times they are repeated")
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    prepare_cpu_process()
    pa.set_cpu_count(1)
    teacher = Teacher()
    places = spread(teacher.engine.vocab_size)
    scored = [(ids, list(teacher.logits(ids))) for ids in teacher.documents(a.tokens)]
    for targets in (Targets(k=64), Targets(mode="sampled")):
        documents = [score(ids, chunks, targets) for ids, chunks in scored]
        documents = [replace(d, ids=places[d.ids], token_ids=places[d.token_ids]) for d in documents] * a.copies
        documents.sort(key=lambda document: document.tokens)
        measure(targets, documents, a.rounds)


def measure(targets: Targets, documents: Sequence[CachedDocument], rounds: int) -> None:
    """Print a line for each codec and direction."""
    tokens = sum(document.tokens for document in documents)
    print(f"\n{targets.mode}: {tokens} tokens of {len(documents)} documents, {tokens / len(documents):.0f} a document, one core")
    counts = np.bincount(np.concatenate([document.token_ids for document in documents]), minlength=QWEN3_VOCABULARY)
    ids, entries = (np.concatenate([getattr(document, name) for document in documents]) for name in ("ids", "counts"))
    clusters = cluster_vocabulary(ids, entries, counts)
    ranks = Vocabulary.by_frequency(counts)
    files = {
        name: File(make_codec(name, targets, clusters if name == "clusters" else ranks), documents)
        for name in ("plain", "ranks", "clusters")
    }
    works = {(name, way): getattr(file, way) for name, file in files.items() for way in ("encode", "decode")}
    times: dict = {key: [] for key in works}
    lists = []
    for _ in range(rounds + 1):
        for key, work in works.items():
            times[key].append(seconds(work) / tokens)
        lists.append(seconds(files["plain"].to_pylist) / files["plain"].first_tokens)
    for way in ("decode", "encode"):
        for name in files:
            report(f"{way} {name}", times[name, way][1:], times["plain", way][1:])
    report("decode plain, to_pylist", lists[1:], times["plain", "decode"][1:])
    _one_document(files["clusters"])


def _one_document(file: File) -> None:
    """A document at random: open the batch that holds it, decode it."""
    reader = pa.ipc.open_file(file.data, options=pa.ipc.IpcReadOptions(use_threads=False))

    def read() -> None:
        file._padded(Columns(reader.get_batch(0)), range(1), file.lengths[:1])

    times = sorted(seconds(read) for _ in range(50))
    print(f"one document at random     {times[0] * 1e3:.2f} ms at best, {statistics.median(times) * 1e3:.2f} ms in the median of 50")


if __name__ == "__main__":
    main()
