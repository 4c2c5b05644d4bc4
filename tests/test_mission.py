"""The mission's own words, run: one teacher pass over parquet, a post-norm student grown from it, nothing else needed."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_teacher import QWEN3_SEPARATOR, QWEN3_VOCAB, text, write_parquet, write_teacher

from pipeline.contract.logit_cache import LogitCache

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    write_teacher(folder / "teacher", vocab_size=QWEN3_VOCAB)
    write_parquet(folder / "documents.parquet", [text(3 + i % 7, i) for i in range(110)] + [None, "   "])
    return folder


def test_the_two_commands(pipeline, inputs, tmp_path):
    settings = [f"teacher.model={inputs}/teacher", f"documents.files={inputs}/documents.parquet", "documents.limit=96"]
    code, out, err = pipeline(
        "cache-teacher", "--shard", "fineweb-10bt", *[part for s in settings for part in ("--set", s)], "--engine", "transformers", "--json"
    )
    assert code == 0, err
    captured = json.loads(out)
    assert captured["splits"]["train"]["documents"] == 96
    assert {"shard", "fingerprint", "documents", "tokens", "shards_written", "shards_reused", "tokens_per_second", "skipped"} <= set(
        captured
    )

    cache = LogitCache.open(tmp_path / "artifacts/caches/fineweb-10bt")
    assert all(cache[i].token_ids[-1] == QWEN3_SEPARATOR for i in range(len(cache)))
    assert max(int(cache[i].ids.max()) for i in range(len(cache))) >= 1 << 17  # 18 bits
    assert cache.manifest.vocab_size == QWEN3_VOCAB

    shutil.move(inputs / "teacher", inputs / "teacher-away")  # stage two needs none of it
    code, out, err = pipeline("train", "--norm", "post", "--curriculum", "grow", "--set", "steps=4", "--json")
    assert code == 0, err
    trained = json.loads(out)
    assert [phase["active_layers"] for phase in trained["phases"]] == [3, 6, 9]
    assert trained["steps_executed"] == 12 and trained["val_ce"] < trained["val_ce_start"]
    assert trained["tokens_unique"] == captured["splits"]["train"]["tokens"]

    code, out, err = pipeline("evaluate", trained["run"], "--json")
    assert code == 0, err
    assert np.isclose(json.loads(out)["val_ce"], trained["val_ce"], rtol=1e-6)


@pytest.mark.parametrize(
    ("command", "missing", "supplied_by"),
    [
        (
            ["cache-teacher", "--shard", "fineweb-10bt"],
            ["Qwen/Qwen3-8B-Base", "fineweb-edu"],
            ["--set teacher.model", "--set documents.files"],
        ),
        (["train", "--norm", "post", "--curriculum", "grow"], ["no finished cache"], ["pipeline cache-teacher --shard fineweb-10bt"]),
    ],
)
def test_without_what_they_need_both_say_what_supplies_it(tmp_path, command, missing, supplied_by):
    environment = {"PATH": "/usr/bin:/bin", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hub"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-m", "pipeline", *command], cwd=tmp_path, env=environment, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert all(part in lines[0] for part in missing + supplied_by)
