"""What keeping, coding and writing cost beside the teacher: `python tests/benchmarks/capture_ratio.py`.

The capture of a shard against the bare work: forward, head in chunks, top-k. Interleaved in one process, document by document;
the ratio's median and spread over rounds.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scored_documents import Teacher

from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.index import MadeBy
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.process import prepare_cpu_process
from pipeline.contract.store import open_store
from stage1_teacher.engines.transformers_engine import batches_by_length


@torch.inference_mode()
def bare(teacher: Teacher, documents: list[np.ndarray], k: int = 64) -> None:
    """Padded forwards as in a capture, then logits and their top k, and nothing else."""
    engine = teacher.engine
    for members in batches_by_length([len(ids) for ids in documents], engine.tokens_per_batch):
        time_ = max(len(documents[member]) for member in members)
        padded = torch.zeros(len(members), time_, dtype=torch.int64)
        for row, member in enumerate(members):
            padded[row, : len(documents[member])] = torch.from_numpy(documents[member])
        hidden = engine.model.model(padded, use_cache=False).last_hidden_state
        real = torch.arange(time_) < torch.tensor([len(documents[member]) - 1 for member in members])[:, None]
        rows = hidden[real]
        for start in range(0, len(rows), engine.rows_per_chunk):
            (rows[start : start + engine.rows_per_chunk].float() @ engine.head.T).topk(k)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1_500)
    parser.add_argument("--rounds", type=int, default=5)
    a = parser.parse_args()
    prepare_cpu_process()
    teacher = Teacher()
    documents = teacher.documents(a.tokens)
    tokens = sum(len(ids) - 1 for ids in documents)
    counts = np.bincount(np.concatenate(documents), minlength=teacher.engine.vocab_size)
    codec = make_codec("ranks", teacher.shard.targets, Vocabulary.by_frequency(counts))
    with tempfile.TemporaryDirectory() as folder:
        cache, made_by = open_store(Path(folder)), MadeBy(fingerprint="", vocabulary=None)

        def capture() -> None:
            scored = teacher.engine.score(documents)
            write_shard(cache, codec, "train", 0, scored, first_document=0, tokens_per_batch=8192, skipped={}, made_by=made_by)

        ratios = []
        for _ in range(a.rounds + 1):
            started = time.process_time()
            bare(teacher, documents)
            middle = time.process_time()
            capture()
            ratios.append((middle - started) / (time.process_time() - middle))
    ratios = sorted(ratios[1:])
    print(
        f"capture at {statistics.median(ratios):.3f} of the bare forward and top-k ({ratios[0]:.3f} to {ratios[-1]:.3f}, {a.rounds} rounds)"
    )
    print(f"{tokens} tokens, k=64, codec ranks, written, hashed and measured; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
