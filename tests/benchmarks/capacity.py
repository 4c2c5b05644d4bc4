"""What a capture of any size costs, on paper: the tables of `stage1_teacher/CAPACITY.md`.

    PYTHONPATH=tests python tests/benchmarks/capacity.py

Nothing is run on a GPU. The teacher's shape is Qwen3-8B's, a device's rates are its maker's, what is reached of them is assumed and can
be given; bytes a token are read from README.md; a sidecar's size and the rate of reading documents are measured here.
"""

import argparse
import json
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from reference_rows import kept_document
from tiny_teacher import write_parquet

from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.index import MadeBy, pack_lengths
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import Documents, Targets, Validation
from pipeline.contract.store import open_store
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.shard_plan import ShardPlan

PAPER, TOKENS_A_DOCUMENT = 3.11e9, 972
LARGE, MACHINES, DEVICES_A_MACHINE, DOCUMENTS_A_SHARD = 10e12, 100, 8, 2048
BYTES_OF_TEXT_A_TOKEN = 4.5
WORDS = {"topk": 12, "threshold": 12, "sampled": 22}
"""Float32 words a logit that keeping reads and writes: the head's product 1, maxima 1, less the largest 2, exponential 2, their sum 1,
the tail's 1, the entropy 4; a sample: squares 1, lengths 4, in float64 and summed 5."""


@dataclass(frozen=True)
class Device:
    """Peak dense bfloat16 FLOP/s and memory bytes/s, as its maker states them."""

    name: str
    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Shape:
    """A teacher of the Qwen3 family."""

    layers: int = 36
    hidden: int = 4096
    intermediate: int = 12_288
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    vocab: int = 151_936

    @property
    def body(self) -> float:
        """FLOP a token of all matrix products of the blocks."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return 2.0 * self.layers * (attention + 3 * self.hidden * self.intermediate)

    def attention(self, length: int) -> float:
        """FLOP a token of scores and mixing, over half a document on average."""
        return 4.0 * self.layers * self.heads * self.head_dim * length / 2

    @property
    def head(self) -> float:
        return 2.0 * self.hidden * self.vocab


DEVICES = (Device("H100 SXM", 989e12, 3.35e12), Device("H200", 989e12, 4.8e12))


def seconds(device: Device, shape: Shape, mode: str, compute: float, memory: float) -> dict[str, float]:
    """Of one token: blocks, head, and keeping, with these parts of the device's peaks."""
    products = device.flops * compute
    body = (shape.body + shape.attention(TOKENS_A_DOCUMENT)) / products
    return {"body": body, "head": shape.head / products, "keep": 4 * WORDS[mode] * shape.vocab / (device.bandwidth * memory)}


def bytes_a_token() -> dict[str, float]:
    """Of the codec `clusters`, by targets, from README's table."""
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `clusters` \|(.*)\|$", readme, re.MULTILINE)
    return dict(zip(("k=64", "k=128", "c=1/128", "c=1/64"), map(float, re.findall(r"\d+\.\d+", row)[:4]), strict=True))


def sidecar_bytes(documents: int = DOCUMENTS_A_SHARD) -> int:
    """Of a shard of documents of the paper's length: that of a shard of short ones, with as many lengths and batches as theirs."""
    rng = np.random.default_rng(0)
    short = [kept_document(rng, [3] * 4, 1000) for _ in range(documents)]
    codec = make_codec("ranks", Targets(k=3), Vocabulary.by_frequency(np.zeros(1000)))
    with tempfile.TemporaryDirectory() as folder:
        made_by = MadeBy(fingerprint="0" * 32, vocabulary="0" * 32)
        options = {"first_document": 0, "tokens_per_batch": 8192, "skipped": {}, "made_by": made_by}
        record = write_shard(open_store(Path(folder)), codec, "train", 0, short, **options)
    lengths = np.clip(rng.lognormal(6.5, 0.8, documents), 2, 8192).astype(int).tolist()
    batch = len(json.dumps(record.batches[0].model_dump()))
    more_batches = sum(lengths) // 8192 - len(record.batches)
    return len(json.dumps(record.model_dump())) + len(pack_lengths(lengths)) - len(record.lengths) + more_batches * batch


def reading_rate(documents: int = 20_000) -> float:
    """Bytes of text a second at which one worker walks through a parquet source to find its next shard."""
    text = "some words of a document " * 180
    with tempfile.TemporaryDirectory() as folder:
        file = write_parquet(Path(folder) / "documents.parquet", [text] * documents)
        source = Documents(source="parquet", files=[str(file)], limit=documents, validation=Validation(documents=1))
        started = time.process_time()
        units = sum(1 for _ in ShardPlan(open_documents(source), source, 2048, ["train"]))
        spent = time.process_time() - started
    assert units
    return documents * len(text) / spent


def print_device(compute: float, memory: float, price: float) -> float:
    """A device's rates; the first one's tokens a second for topk."""
    shape, first = Shape(), 0.0
    total = shape.body + shape.attention(TOKENS_A_DOCUMENT) + shape.head
    print(f"FLOP a token: blocks {shape.body:.4g}, attention {shape.attention(TOKENS_A_DOCUMENT):.3g}, head {shape.head:.4g}: {total:.4g}")
    print("| device | targets | blocks, us | head, us | keeping, us | tokens/s | 3.11B tokens, hours | money |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for device in DEVICES:
        for mode in ("topk", "sampled"):
            parts = seconds(device, shape, mode, compute, memory)
            rate = 1 / sum(parts.values())
            first = first or rate
            cells = " | ".join(f"{part * 1e6:.1f}" for part in parts.values())
            hours = PAPER / rate / 3600
            print(f"| {device.name} | {mode} | {cells} | {rate:,.0f} | {hours:.0f} | {hours * price:,.0f} |")
    return first


def print_bytes() -> None:
    print("\n| targets | bytes a token | 3.11B tokens, GB | 10T tokens, TB |\n|---|---:|---:|---:|")
    for name, weight in bytes_a_token().items():
        print(f"| {name} | {weight} | {weight * PAPER / 1e9:,.0f} | {weight * LARGE / 1e12:,.0f} |")


def print_limits(rate: float) -> None:
    workers, sidecar, reading = MACHINES * DEVICES_A_MACHINE, sidecar_bytes(), reading_rate()
    share = BYTES_OF_TEXT_A_TOKEN / reading * rate
    print(f"\na sidecar of {DOCUMENTS_A_SHARD:,} documents: {sidecar:,} bytes; reading: {reading / 1e6:,.0f} MB/s a worker, one core")
    print(
        f"reading all text takes each of W workers {share:.2g} W of its time: a tenth at W = {0.1 / share:.0f}, half at {0.5 / share:.0f}"
    )
    print("| tokens | shards | manifest.json | one machine, days | 100 machines, days | sidecars asked for a second, then |")
    print("|---:|---:|---:|---:|---:|---:|")
    for tokens in (PAPER, 1e11, 1e12, LARGE):
        shards = tokens / TOKENS_A_DOCUMENT / DOCUMENTS_A_SHARD
        alone, all_ = (tokens / rate / devices / 86400 for devices in (DEVICES_A_MACHINE, workers))
        size = f"{shards * sidecar / 1e9:,.2f} GB"
        print(f"| {tokens / 1e9:,.5g}B | {shards:,.0f} | {size} | {alone:,.2f} | {all_:,.2f} | {shards * workers / all_ / 86400:,.0f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compute", type=float, default=0.45, help="part of the peak FLOP/s that long prefills reach")
    parser.add_argument("--memory", type=float, default=0.7, help="part of the peak bytes/s that element-wise passes reach")
    parser.add_argument("--price", type=float, default=2.5, help="of one device an hour")
    a = parser.parse_args()
    rate = print_device(a.compute, a.memory, a.price)
    print_bytes()
    print_limits(rate)


if __name__ == "__main__":
    main()
