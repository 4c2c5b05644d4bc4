"""The record of a finished study, for `manifests/records/`: what was run, on what, and what every run came to.

    python tests/benchmarks/study_record.py small-2x2 [--root ROOT] [--out manifests/records]

Writes NAME.json (commits, versions, seconds, the teacher, the cache, each run's endpoints) and NAME.md, the report's tables without its
pictures. Reads records only. An unfinished study is refused: a record says what a whole one showed.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.commands.run import workflow_of
from pipeline.contract.errors import RunError
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.run_record import RunFolder
from pipeline.shard_choice import root_hint
from pipeline.workflow import Workflow

ENDPOINT = ("index", "active_layers", "val_ce", "val_kl", "val_ppl")
TEACHER = ("steps", "tokens", "tokens_unique", "documents", "parameters", "vocab_size", "train_loss", "val_ce_start", "val_ce", "val_ppl")


def study_record(workflow: Workflow) -> dict[str, Any]:
    """The record as JSON values.

    Raises:
        RunError: a stage is not current.
    """
    stages = workflow.stages()
    behind = [stage for stage in stages if stage.state != "current"]
    command = f"pipeline run {workflow.experiment.name}{root_hint(workflow.root)}"
    if behind:
        raise RunError(f"{behind[0].name}: {behind[0].state} ({behind[0].reason}), and {len(behind) - 1} more; finish with '{command}'")
    teacher = workflow.root.teacher(workflow.shard.name)
    runs = workflow.runs()
    starts = [start for folder in [teacher, *runs] for start in folder.read("provenance") or []]
    cache = read_manifest(workflow.cache)
    return {
        "experiment": workflow.experiment.name,
        "command": f"pipeline run {workflow.experiment.name}",
        "environment": {key: distinct(start[key] for start in starts) for key in ("commit", "python", "machine")}
        | {"packages": distinct(start["packages"] for start in starts)},
        "first_start": min(start["started"] for start in starts),
        "starts_of_runs": {"runs": len(runs), "starts": len(starts)},
        "training_seconds": round(sum(folder.read("result")["seconds"] for folder in runs)),
        "teacher": pick(teacher.read("result") or {}, TEACHER),
        "cache": {
            "fingerprint": cache.fingerprint,
            "documents": {name: split.documents for name, split in cache.splits.items()},
            "tokens": {name: split.tokens for name, split in cache.splits.items()},
        },
        "runs": [run_record(folder) for folder in runs],
    }


def run_record(folder: RunFolder) -> dict[str, Any]:
    """One run: what set it apart, the end of each phase, how often its gradient was clipped."""
    result, settings = folder.read("result"), folder.read("config")["settings"]
    steps = [record for record in folder.metrics() if record["kind"] == "train"]
    return {
        "run": result["run"],
        "learning_rate": settings["learning_rate"],
        "initializer_range": settings["model"]["initializer_range"],
        "phases": [pick(phase, ENDPOINT) for phase in result["phases"]],
        "tokens_total": result["tokens_total"],
        "clipped": sum(step["optim/clipped"] for step in steps) / len(steps),
    }


def pick(values: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: values[key] for key in keys if key in values}


def distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, in the order of its first coming."""
    found: list[Any] = []
    for value in values:
        if value not in found:
            found.append(value)
    return found


def without_pictures(report: str) -> str:
    """The report's Markdown but for the sections that hold a figure."""
    return "\n## ".join(section for section in report.split("\n## ") if "![" not in section)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment")
    parser.add_argument("--root")
    parser.add_argument("--out", type=Path, default=Path("manifests/records"))
    given = parser.parse_args()
    workflow = workflow_of(given.experiment, None, given.root)
    record, name = study_record(workflow), workflow.experiment.name
    report = (workflow.root.report(name) / "report.md").read_text(encoding="utf-8")
    (given.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (given.out / f"{name}.md").write_text(without_pictures(report), encoding="utf-8")


if __name__ == "__main__":
    main()
