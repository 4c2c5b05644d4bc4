"""What keeping entries costs beside vLLM's bare prefill; needs the extra `cpu`:

    PYTHONPATH=tests:tests/stage1_teacher python tests/benchmarks/vllm_speed.py

One engine, one thread, a tiny Qwen3 with Qwen3's vocabulary. Four kinds of request are interleaved: prefill alone; the same bytes
brought back without a head; head, log-softmax and top-k; and the capture's own scoring. CPU-seconds, medians and spread over rounds.
Then the front end alone: from vLLM's packed rows to documents, in microseconds a prompt token.
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
from vllm import ModelRegistry, PoolingParams
from vllm_floors import ARCHITECTURE, FLOOR, Qwen3WithFloors

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.engines import vllm_engine
from stage1_teacher.engines.vllm_models import TASK
from stage1_teacher.packed_rows import pack, slots, width
from stage1_teacher.scored import ScoredRows
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


def front_end(targets: Targets, tokens: int) -> float:
    """Seconds a token from packed rows to a document."""
    import torch

    from stage1_teacher.targets import keep

    rows = keep(torch.randn(256, 2000), torch.zeros(256, dtype=torch.int64), targets, torch.zeros(256, dtype=torch.int64))
    packed = pack(rows, slots(targets, VOCAB)).numpy()
    packed = np.tile(packed, (tokens // 256, 1))
    ids = np.zeros(len(packed) + 1, dtype=np.int32)

    def document() -> None:
        scored = ScoredRows(targets)
        scored.add_packed(packed)
        next(scored.documents([ids]))

    return min(seconds(document) for _ in range(9)) / len(packed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    a = parser.parse_args()
    ModelRegistry.register_model(ARCHITECTURE, Qwen3WithFloors)
    vllm_engine.ARCHITECTURES = {"qwen3": ARCHITECTURE}
    with tempfile.TemporaryDirectory() as name:
        folder = write_teacher(Path(name), vocab_size=VOCAB, tied=True, head_dim=64)
        made = shard(folder, folder, documents={"max_length": 256}, cache={"tokens_per_batch": 1024, "rows_per_chunk": 128, "threads": 1})
        engine = vllm_engine.VllmEngine(TeacherFiles(folder), made)
        rng = np.random.default_rng(0)
        prompts = [rng.integers(0, VOCAB, length).astype(np.int32) for length in (250, 3, 120, 60, 200, 17)]
        tokens = sum(map(len, prompts))
        print(f"{tokens} prompt tokens of {len(prompts)} documents, vocabulary {VOCAB}, one thread")
        for targets in (Targets(k=64), Targets(k=128), Targets(mode="threshold", c=1e-3, k=255), Targets(mode="sampled")):
            times = rounds(engine, prompts, targets, a.rounds)
            report("transport / prefill", times["transport"][1:], times["prefill"][1:], targets)
            report("capture / (prefill + head + top-k)", times["capture"][1:], times["head"][1:], targets)
    for targets in (Targets(k=64), Targets(k=128), Targets(mode="sampled")):
        print(f"front end, {targets.mode} k={targets.k}: {front_end(targets, 4096) * 1e6:.2f} us a prompt token")


def report(what: str, mine: list[float], floor: list[float], targets: Targets) -> None:
    ratios = sorted(one / other for one, other in zip(mine, floor, strict=True))
    print(f"{targets.mode} k={targets.k}: {what} {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})", flush=True)


if __name__ == "__main__":
    main()
