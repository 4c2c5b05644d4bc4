"""What keeping entries costs beside vLLM's bare prefill; needs the extra `cpu`:

    PYTHONPATH=tests:tests/stage1_teacher python tests/benchmarks/vllm_speed.py

One engine, one thread, a tiny Qwen3 with Qwen3's vocabulary. Four kinds of request are interleaved: prefill alone; the same bytes
brought back without a head; head, log-softmax and top-k; and the capture's own scoring. CPU-seconds, medians and spread over rounds.
Last, what a whole capture makes of the engine's own rate: coding, hashing and writing a shard too.
"""

import argparse
import os
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}

import numpy as np
from captures import shard
from tiny_teacher import write_teacher
from vllm import PoolingParams
from vllm_floors import ARCHITECTURE, FLOOR, Qwen3WithFloors

from pipeline.contract.logit_cache.codec import make_codec
from pipeline.contract.logit_cache.index import MadeBy
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.logit_cache.writer import write_shard
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.store import open_store
from stage1_teacher.engines import vllm_engine, vllm_models
from stage1_teacher.engines.vllm_models import TASK
from stage1_teacher.packed_rows import width
from stage1_teacher.teacher_files import TeacherFiles

VOCAB = 151_936


def ask(engine, prompts: list[np.ndarray], kind: str, targets: Targets) -> None:
    wide = 1 if kind == "prefill" else width(targets, VOCAB)
    asked = PoolingParams(task=TASK, extra_kwargs={FLOOR: kind, "k": targets.k, "width": wide})
    given = [{"prompt_token_ids": ids.tolist()} for ids in prompts]
    engine.model.encode(given, pooling_params=asked, pooling_task=TASK, use_tqdm=False)


def seconds(work) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def rounds(engine, prompts: list[np.ndarray], targets: Targets, count: int) -> dict[str, list[float]]:
    """Seconds of each kind of request, one after the other in each round; the first round is for warming up."""
    works = {kind: partial(ask, engine, prompts, kind, targets) for kind in ("prefill", "transport", "head")}
    works["capture"] = partial(engine.score, prompts, targets)
    times: dict[str, list[float]] = {kind: [] for kind in works}
    for _ in range(count + 1):
        for kind, work in works.items():
            times[kind].append(seconds(work))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    setattr(vllm_models, ARCHITECTURE, Qwen3WithFloors)
    vllm_engine.ARCHITECTURES = {"qwen3": ARCHITECTURE}
    with tempfile.TemporaryDirectory() as name:
        folder = write_teacher(Path(name), vocab_size=VOCAB, tied=True, head_dim=64)
        made = shard(folder, folder, documents={"max_length": 256}, cache={"tokens_per_batch": 1024, "rows_per_chunk": 128, "threads": 1})
        engine = vllm_engine.VllmEngine(TeacherFiles(folder), made)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, VOCAB, length).astype(np.int32) for length in (250, 3, 120, 60, 200, 17)]
        tokens = sum(map(len, prompts))
        print(f"{tokens} prompt tokens of {len(prompts)} documents, vocabulary {VOCAB}, one thread")
        wanted = (Targets(k=64), Targets(k=128), Targets(mode="threshold", c=1e-3, k=255), Targets(mode="sampled"))
        for targets in wanted:
            times = rounds(engine, prompts, targets, a.rounds)
            report("transport / prefill", times["transport"][1:], times["prefill"][1:], targets)
            report("capture / (prefill + head + top-k)", times["capture"][1:], times["head"][1:], targets)
            report("rate to a written shard / rate of scoring", *shards(engine, prompts, targets, a.rounds), targets)


def shards(engine, prompts: list[np.ndarray], targets: Targets, count: int) -> tuple[list[float], list[float]]:
    """Seconds of scoring alone, and of scoring and writing a shard of it, in turn; the first round is for warming up."""
    codec = make_codec("ranks" if targets.mode != "sampled" else "streams", targets, Vocabulary.by_frequency(np.zeros(VOCAB)))
    options = {"first_document": 0, "tokens_per_batch": 8192, "skipped": {}, "made_by": MadeBy(fingerprint="", vocabulary=None)}
    alone, whole = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(count + 1):
            alone.append(seconds(lambda: engine.score(prompts, targets)))
            written = partial(write_shard, open_store(Path(folder)), codec, "train", 0, **options)
            whole.append(seconds(lambda written=written: written(engine.score(prompts, targets))))
    return alone[1:], whole[1:]


def report(what: str, mine: list[float], floor: list[float], targets: Targets) -> None:
    ratios = sorted(one / other for one, other in zip(mine, floor, strict=True))
    print(f"{targets.mode} k={targets.k}: {what} {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)


if __name__ == "__main__":
    main()
