"""Tiny runs for the tests of this folder: a capture, jobs over it, processes that train, and what they left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file
from tiny_teacher import text, write_parquet, write_teacher

from pipeline.cli import run_command
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.manifest.overrides import merge
from pipeline.contract.manifest.shard import Targets
from pipeline.contract.manifest.strict import parse
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.store import open_store
from stage2_student.job import StudentJob

CHECKOUT = Path(__file__).parents[2]
LENGTHS = [30, 7, 19, 44, 7, 25, 12, 61, 9, 16, 7, 38, 22, 11, 50, 7, 14, 27, 33, 8, 18, 41, 10, 21, 13, 29, 17, 36, 24]  # words
SETTINGS: dict[str, Any] = {
    "model": {"blocks": 3, "layers_per_block": 1, "initializer_range": 0.2},
    "steps": 4,
    "global_batch_size": 4,
    "micro_batch_tokens": 100,
    "learning_rate": 3e-3,
    "eval_interval": 3,
    "checkpoint_interval": 3,
    "gradient_checkpointing": False,
}


def capture(folder: Path, *sets: str) -> Path:
    """Capture a two-layer teacher of vocabulary 128 over ragged documents, a document of 8 tokens among them."""
    write_teacher(folder / "teacher")
    write_parquet(folder / "documents.parquet", [text(length, start) for start, length in enumerate(LENGTHS)])
    shard = {
        "name": "tiny",
        "teacher": {"model": str(folder / "teacher")},
        "documents": {
            "source": "parquet",
            "files": str(folder / "documents.parquet"),
            "limit": 24,
            "validation": {"documents": 5, "every": 5},
            "max_length": 48,
        },
        "targets": {"k": 8},
        "cache": {"documents_per_shard": 5},
        "student": SETTINGS,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(shard))
    more = [argument for each in sets for argument in ("--set", each)]
    assert run_command(["cache-teacher", "--shard", str(folder / "tiny.yaml"), "--root", str(folder / "artifacts"), *more]) == 0
    return folder / "artifacts/caches/tiny"


def new_root(root: Path, cache: Path) -> Path:
    (root / "caches").mkdir(parents=True)
    (root / "caches/tiny").symlink_to(cache)
    return root


def settings(**changes: Any) -> StudentManifest:
    """The tiny settings, with `changes` merged in."""
    return parse(StudentManifest, merge(SETTINGS, changes), "test").for_targets(Targets())


def job(root: Path, **changes: Any) -> StudentJob:
    """A job over the tiny cache, in its own folder under `root`."""
    cache = open_store(root / "caches/tiny")
    chosen, manifest = settings(**changes), read_manifest(cache)
    name = chosen.name or "run"
    return StudentJob(
        settings=chosen,
        shard="tiny",
        cache=cache,
        cache_fingerprint=manifest.fingerprint,
        documents=manifest.splits["train"].documents,
        run=name,
        folder=root / "runs" / name,
    )


def train_arguments(root: Path, name: str, *more: str, **changes: Any) -> list[str]:
    """`pipeline` arguments of a run called `name`."""
    sets = [argument for key, value in {"name": name, **changes}.items() for argument in ("--set", f"{key}={value}")]
    return ["train", "--shard", "tiny", "--root", str(root), "--json", *more, *sets]


def environment() -> dict[str, str]:
    """This process's, one thread for each child, and where it finds the modules of the tests."""
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(Path(__file__).parent), str(CHECKOUT / "tests")]),
    }


def start(arguments: list[str], module: str = "pipeline") -> subprocess.Popen[str]:
    """`python -m MODULE ARGUMENTS`, its output piped."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], code: int = 0) -> tuple[str, str]:
    """Wait for `process`; its stdout and stderr."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == code, err[-3000:]
    return out, err


def metrics(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """Whole lines of a run's metrics.jsonl."""
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [record for record in records if kind in (None, record["kind"])]


def phase_state(folder: Path, phase: int) -> dict[str, torch.Tensor]:
    return load_file(folder / f"phases/phase-{phase}/model.safetensors")


def equal_states(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
