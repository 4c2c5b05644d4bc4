"""From what vLLM's worker sends to what a capture writes, on one thread: `prompt_logprobs` as dicts, as flat lists, and packed rows.

    PYTHONPATH=tests:tests/stage1_teacher python tests/benchmarks/vllm_front_end.py

CPU microseconds a prompt token, interleaved, median and spread over rounds; no GPU makes them fewer. vLLM's own classes turn its tensors
into objects; from either kind of object ids and logprobs go on to arrays, as a cache needs them. Needs the extra `cpu`.
"""

import argparse
import os
import statistics
import time

os.environ |= {"OMP_NUM_THREADS": "1", "VLLM_LOGGING_LEVEL": "ERROR"}

import numpy as np
import torch
from vllm.logprobs import create_prompt_logprobs
from vllm.v1.engine.logprobs import LogprobsProcessor
from vllm.v1.outputs import LogprobsTensors

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.packed_rows import pack, slots
from stage1_teacher.scored import ScoredRows
from stage1_teacher.targets import keep

VOCAB, TOKENS = 151_936, 2_048


def objects(flat: bool, k: int):
    """vLLM's own front end, and then arrays."""
    ids = (torch.randint(VOCAB, (TOKENS, 1)) + 997 * torch.arange(k + 1)) % VOCAB  # no id twice in a row
    logprobs = torch.randn(TOKENS, k + 1)
    sent = LogprobsTensors(ids.int(), logprobs, torch.ones(TOKENS, dtype=torch.int32))

    def work() -> None:
        processor = LogprobsProcessor(None, None, create_prompt_logprobs(flat), None, None, k)
        processor._update_prompt_logprobs(sent)
        made = processor.prompt_logprobs
        if flat:
            np.array(made.token_ids, dtype=np.int32), np.array(made.logprobs, dtype=np.float32)
        else:
            np.array([list(row) for row in made[1:]], dtype=np.int32)
            np.array([[entry.logprob for entry in row.values()] for row in made[1:]], dtype=np.float32)

    return work


def packed(targets: Targets):
    """Packed rows to a document of the cache."""
    rows, none = TOKENS // 8, torch.zeros(TOKENS // 8, dtype=torch.int64)
    kept = keep(4 * torch.randn(rows, 4000, generator=torch.Generator().manual_seed(0)), none, targets, none)
    sent = np.tile(pack(kept, slots(targets, VOCAB)).numpy(), (8, 1))
    ids = np.zeros(TOKENS + 1, dtype=np.int32)

    def work() -> None:
        scored = ScoredRows(targets)
        scored.add_packed(sent)
        next(scored.documents([ids]))

    return work


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    works = {f"{'flat' if flat else 'dict'} k={k}": objects(flat, k) for k in (64, 128) for flat in (False, True)}
    works |= {f"packed k={k}": packed(Targets(k=k)) for k in (64, 128)}
    works |= {"packed threshold": packed(Targets(mode="threshold", c=1e-3, k=255)), "packed sampled": packed(Targets(mode="sampled"))}
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 1):
        for name, work in works.items():
            started = time.process_time()
            work()
            times[name].append((time.process_time() - started) / TOKENS * 1e6)
    for name, all_ in times.items():
        found = sorted(all_[1:])
        print(f"{name:16} {statistics.median(found):8.2f} us a prompt token ({found[0]:.2f} to {found[-1]:.2f})")


if __name__ == "__main__":
    main()
