"""`pipeline train-teacher`: a small teacher of one's own, for studies that fit a CPU."""

import time
from typing import Any

from pipeline.commands.options import JsonOption, RootOption, SetOption, ShardOption, log, only_results_on_stdout, out, print_json
from pipeline.contract.errors import ManifestError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.overrides import read_overrides, split_by_owner
from pipeline.contract.run_record import Metrics
from pipeline.shard_choice import capture_settings, root_hint

LINES = 40
"""Lines of progress in a whole training, besides the evaluations."""


def train_teacher(shard: ShardOption, overrides: SetOption = None, root: RootOption = None, as_json: JsonOption = False) -> None:
    """Train a Qwen3-shaped model and its vocabulary on a shard's training documents; the manifest's teacher.training says how.

    Run it again to resume. `teacher.model: trained:NAME` in a manifest means the teacher that was trained on the shard NAME.
    """
    settings, student = split_by_owner(read_overrides(overrides or []))
    for key, value in student.items():
        raise ManifestError(f"--set {key}={value}: is a student's setting; a teacher's are teacher.training.KEY")
    artifacts = ArtifactRoot.resolve(root)
    with only_results_on_stdout():
        summary = run_training(shard, settings, artifacts)
    if as_json:
        print_json(summary)
        return
    out.print(
        f"{summary['teacher']}: {summary['parameters']:,} parameters, {summary['tokens']:,} target tokens, "
        f"validation CE {summary['val_ce_start']:.4f} -> {summary['val_ce']:.4f}, perplexity {summary['val_ppl']:.2f}\n{summary['model']}\n"
        f"to cache it: pipeline cache-teacher --shard {shard} --set teacher.model=trained:{summary['teacher']}{root_hint(artifacts)}"
    )


def run_training(shard_name: str, settings: dict[str, Any], root: ArtifactRoot) -> dict[str, Any]:
    """Train and report; returns what `--json` prints."""
    from stage1_teacher.training.job import TeacherJob
    from stage1_teacher.training.train_teacher import train_teacher as train

    shard, _ = capture_settings(shard_name, settings, root)
    job = TeacherJob(shard, root.teacher(shard.name))
    return train(job, TeacherProgress(shard.name, job.training.steps)) | {"model": str(job.model)}


class TeacherProgress:
    """A line an evaluation, and about forty in a whole training, on stderr."""

    def __init__(self, name: str, steps: int) -> None:
        self.name, self.steps, self.every, self.started, self.first = name, steps, max(1, steps // LINES), time.monotonic(), 0

    def __call__(self, record: Metrics) -> None:
        step = record["step"]
        if record["kind"] == "val":
            log.print(f"teacher {self.name} step {step}/{self.steps}: validation CE {record['val/ce']:.4f}, PPL {record['val/ppl']:.2f}")
            return
        self.first = self.first or step
        if step % self.every == 0:
            left = (self.steps - step) * (time.monotonic() - self.started) / (step - self.first + 1)
            rate = record["perf/tokens_per_second"]
            log.print(
                f"teacher {self.name} step {step}/{self.steps}: loss {record['train/loss']:.4f}, {rate:,.0f} tokens/s, "
                f"about {left:,.0f} s left"
            )
