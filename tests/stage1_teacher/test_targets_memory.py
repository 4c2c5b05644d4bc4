"""Head and targets take the memory of a chunk of rows, whatever a document's length (field case 23)."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MEASURE = """
import sys, torch
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.targets import keep_in_chunks

torch.set_num_threads(1)
weights, targets = torch.randn(8_000, 16), Targets.model_validate_json(sys.argv[1])

def peak(rows, rows_per_chunk):
    none = torch.zeros(rows, dtype=torch.int64)
    for _ in keep_in_chunks(torch.randn(rows, 16), lambda hidden: hidden @ weights.T, none, none, [targets], rows_per_chunk):
        pass
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024  # not rusage's: that is inherited

peak(512, 64)
print(peak(512, 64), peak(4096, 64), peak(4096, 4096))
"""


@pytest.mark.parametrize("targets", ['{"k": 8, "temperatures": [2.0]}', '{"mode": "sampled"}'])
def test_documents_of_512_and_of_4096_tokens_peak_alike(targets):
    """MiB; 4,096 rows of 8,000 logits at once are 125, and are seen."""
    command = [sys.executable, "-c", MEASURE, targets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    short, long, whole = map(int, done.stdout.split())
    assert long - short < 8
    assert whole - long > 110
