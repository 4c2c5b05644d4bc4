"""`pipeline cache audit`: score a sample of a cache again and say whether it is what its teacher says."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, ShardOption, log, only_results_on_stdout, out, print_json
from pipeline.commands.tables import print_table
from pipeline.contract.errors import CacheError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.overrides import read_overrides
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.shard_choice import CapturedShard, captured_shard

if TYPE_CHECKING:
    from stage1_teacher.auditing.audit import Audit


def audit(
    shard: ShardOption,
    documents: Annotated[int, typer.Option(min=1, help="Documents to score again, spread over the shards.")] = 16,
    engine: Annotated[Literal["transformers", "vllm"], typer.Option(help="What to score them with.")] = "transformers",
    split: Annotated[Literal["train", "validation"], typer.Option(help="Which documents.")] = "train",
    seed: Annotated[int, typer.Option(min=0, help="Of the choice of documents.")] = 0,
    any_teacher: Annotated[bool, typer.Option("--any-teacher", help="Compare although the cache names another teacher.")] = False,
    overrides: SetOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score cached documents again and compare row by row. Exit code 2 when the cache is not what the teacher says."""
    chosen = captured_shard(shard, ArtifactRoot.resolve(root), read_overrides(overrides or []))
    with only_results_on_stdout():
        from pipeline.contract.logit_cache import LogitCache
        from stage1_teacher.auditing.audit import AuditRequest
        from stage1_teacher.auditing.audit import audit as run_audit

        cache = LogitCache.open(chosen.cache, split)
        found = run_audit(AuditRequest(cache, scoring_shard(chosen, engine), documents, seed, any_teacher, say_progress))
    facts = {"shard": chosen.shard.name, "split": split, "fingerprint": chosen.manifest.fingerprint, "engine": engine, "seed": seed}
    if as_json:
        print_json({**facts, **found.as_json()})
    else:
        print_audit(found, facts)
    if found.problem:
        raise CacheError(f"{chosen.cache}: {split} {found.problem}; capture it again under another name (--set name=NAME)")


def scoring_shard(chosen: CapturedShard, engine: str) -> ShardManifest:
    """The shard as it was captured, its teacher where it is now."""
    captured = ShardManifest.model_validate(chosen.manifest.shard)
    return captured.model_copy(update={"teacher": chosen.shard.teacher, "engine": engine})


def say_progress(done: int, wanted: int) -> None:
    """A line on stderr."""
    log.print(f"{done}/{wanted} documents compared")


def print_audit(found: "Audit", facts: dict[str, Any]) -> None:
    """The whole as text."""
    out.print(
        f"{facts['shard']} {facts['split']}: {len(found.documents)} documents, {found.rows:,} rows, {facts['engine']} on {found.device}"
    )
    _print_figures("Live against live: the same documents in batches, in pairs and alone", found.control)
    _print_figures("Recorded at the capture, of all rows", found.recorded)
    out.print("\nThe cache against live, by the teacher's entropy in nats")
    names = [name for name in found.bands["all"] if not name.endswith("_se")]
    print_table(["", *found.bands], [[name, *(_with_error(band, name) for band in found.bands.values())] for name in names])
    out.print("\nThe rule: what codec and live against live explain")
    rows = [[check.name, figure(check.value), figure(check.limit), "ok" if check.ok else "NOT OK", _place(check)] for check in found.checks]
    print_table(["worst by criterion", "value", "limit", "", "document, row"], rows)
    out.print("ok" if found.ok else "not ok")


def _print_figures(title: str, figures: dict[str, Any]) -> None:
    out.print(f"\n{title}")
    for name, value in figures.items():
        if value is not None:
            out.print(f"  {name:32s} {figure(value)}")


def _place(check: Any) -> str:
    return f"{check.document}, {check.row}"


def _with_error(band: dict[str, Any], name: str) -> str:
    error = band.get(f"{name}_se")
    return figure(band[name]) + (f" ± {figure(error)}" if error is not None else "")


def figure(value: float | None) -> str:
    """Three digits; whole numbers whole."""
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.3g}"
