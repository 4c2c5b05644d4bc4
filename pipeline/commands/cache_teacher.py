"""`pipeline cache-teacher`: stage one."""

import time
from typing import Annotated, Any, Literal

import typer

from pipeline.commands.executor_options import ExecutorOption, RayAddressOption, WorkerResourcesOption, chosen_executor
from pipeline.commands.options import (
    JsonOption,
    RootOption,
    SetOption,
    ShardOption,
    log,
    note,
    only_results_on_stdout,
    out,
    print_json,
    say_remembered,
)
from pipeline.contract.errors import ManifestError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.overrides import read_overrides, split_by_owner
from pipeline.shard_choice import capture_settings

Engine = Literal["transformers", "vllm"]
SplitChoice = Literal["train", "validation", "all"]
WorkersOption = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes at once, a GPU each [default: 1 on this machine, on Ray as many as it has room for]; "
        "start the command on more machines to use them too.",
    ),
]


def cache_teacher(
    shard: ShardOption,
    engine: Annotated[Engine | None, typer.Option(help="Overrides the manifest's engine.")] = None,
    executor: ExecutorOption = "local",
    workers: WorkersOption = None,
    worker_resources: WorkerResourcesOption = None,
    ray_address: RayAddressOption = None,
    split: Annotated[SplitChoice, typer.Option(help="What to capture.")] = "all",
    overrides: SetOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run the teacher once over a shard's documents and keep its distributions. Run it again to resume."""
    settings = _shard_settings(read_overrides(overrides or []), engine)
    with only_results_on_stdout(), chosen_executor(executor, worker_resources, ray_address) as chosen:
        summary = run_capture(shard, settings, ArtifactRoot.resolve(root), split, workers, chosen)
    if as_json:
        print_json(summary)
    else:
        out.print(
            f"{summary['shard']}: {summary['documents']:,} documents, {summary['tokens']:,} target tokens, "
            f"{summary['shards_written']} shards written, {summary['shards_reused']} reused, "
            f"fingerprint {summary['fingerprint']}\n{_read(summary)}\n{summary['cache']}"
        )


def _read(summary: dict[str, Any]) -> str:
    """How the documents that were read add up."""
    skipped = summary["skipped"]
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in skipped.items()) or "none skipped"
    return f"documents read {summary['documents'] + sum(skipped.values()):,}: {summary['documents']:,} kept, {reasons}"


def _shard_settings(overrides: dict[str, Any], engine: str | None) -> dict[str, Any]:
    name = {key: overrides.pop(key) for key in ("name",) if key in overrides}
    shard, student = split_by_owner(overrides)
    if student:
        key = next(iter(student))
        raise ManifestError(f"--set {key}={student[key]}: is a student's setting; give it to 'pipeline train'")
    return name | shard | ({"engine": engine} if engine else {})


def run_capture(
    shard_name: str,
    settings: dict[str, Any],
    root: ArtifactRoot,
    split: SplitChoice,
    workers: int | None = None,
    executor: Any = None,
) -> dict[str, Any]:
    """Capture and report; returns what `--json` prints. `executor` is None for this machine."""
    given = settings
    root = root if executor is None else root.absolute()
    shard, settings = capture_settings(shard_name, given, root)
    if executor is not None:
        executor = executor.taking(shard.cache.tensor_parallel)
        workers = workers or executor.room()
    from stage1_teacher.capture import CaptureRequest, capture

    splits: list[Any] = ["train", "validation"] if split == "all" else [split]
    cache = root.cache(shard.name)
    progress = ShardProgress(shard.documents.limit)
    result = capture(CaptureRequest(shard, cache, splits, settings, workers or 1, executor, on_shard=progress, on_death=note))
    say_remembered(settings, given)
    captured = result.manifest.splits
    if captured.get("train") and captured["train"].source_exhausted:
        log.print(
            f"note: the documents ended after {captured['train'].documents:,} "
            f"of documents.limit={shard.documents.limit:,} training documents"
        )
    return {
        "shard": shard.name,
        "cache": str(cache),
        "fingerprint": result.manifest.fingerprint,
        "documents": sum(record.documents for record in captured.values()),
        "tokens": sum(record.tokens for record in captured.values()),
        "splits": {name: {"documents": record.documents, "tokens": record.tokens} for name, record in captured.items()},
        "shards_written": result.shards_written,
        "shards_reused": result.shards_reused,
        "tokens_per_second": result.tokens_scored / result.seconds if result.seconds else None,
        "skipped": _add_up([record.skipped for record in captured.values()]),
    }


def _add_up(parts: list[dict[str, int]]) -> dict[str, int]:
    from pipeline.contract.logit_cache.index import merge_counts

    return merge_counts(parts)


class ShardProgress:
    """One line a shard: rate, time left, bytes a token and mass kept so far."""

    def __init__(self, limit: int) -> None:
        self.limit, self.started = limit, time.monotonic()
        self.train = self.tokens = self.bytes = self.fresh = 0
        self.mass = self.seconds = 0.0

    def __call__(self, record: Any, reused: bool, seconds: float) -> None:
        self.train += record.documents if record.split == "train" else 0
        self.tokens, self.bytes, self.mass = (
            self.tokens + record.tokens,
            self.bytes + record.payload.bytes,
            self.mass + record.mass_kept_sum,
        )
        if not reused:
            self.fresh, self.seconds = self.fresh + record.documents, self.seconds + seconds
        left = (self.limit - self.train) * self.seconds / self.fresh if self.fresh else 0
        log.print(
            f"{record.split} shard {record.index}: {'reused' if reused else f'{record.tokens / seconds:,.0f} tokens/s'}, "
            f"{self.train:,}/{self.limit:,} training documents, about {left:,.0f} s left, "
            f"{self.bytes / max(self.tokens, 1):.0f} bytes a token, mass kept {self.mass / max(self.tokens, 1):.3f}"
        )
