"""`pipeline train`: stage two, from the cache alone."""

from typing import Annotated, Any, Literal

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, log, only_results_on_stdout, out, print_json, say_remembered
from pipeline.contract.errors import RunError
from pipeline.contract.fingerprint import require_same
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.find import student_settings
from pipeline.contract.manifest.overrides import merge, nested, read_overrides, split_by_owner
from pipeline.contract.manifest.strict import parse
from pipeline.contract.manifest.student import StudentManifest
from pipeline.shard_choice import CapturedShard, captured_shard, teacher_name


def train(
    norm: Annotated[str, typer.Option(help="Norm placement: pre (x + f(norm(x))) or post (norm(x + f(x))).")] = "pre",
    curriculum: Annotated[Literal["joint", "grow", "freeze"], typer.Option(help="Depth curriculum.")] = "joint",
    shard: Annotated[str, typer.Option(help="The shard whose cache is read.")] = "fineweb-10bt",
    overrides: SetOption = None,
    zero: Annotated[int | None, typer.Option(min=0, max=3, help="DeepSpeed ZeRO stage.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Processes to start here [default: one a GPU, or one].")] = None,
    resume: Annotated[Literal["auto", "never"], typer.Option(help="auto goes on with an unfinished run.")] = "auto",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the phases and budgets, train nothing.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Train a student against a shard's cache. Run it again to resume; it never starts a teacher."""
    shard_overrides, student_overrides = split_by_owner(read_overrides(overrides or []))
    options = {"norm": norm, "curriculum": curriculum} | ({"zero": zero} if zero is not None else {})
    with only_results_on_stdout():
        job = student_job(shard, ArtifactRoot.resolve(root), shard_overrides, [options, nested(student_overrides)], resume=resume)
        summary = _plan(job) if dry_run else run_student(job, devices)
    if summary is None:
        return  # another rank of this run prints
    if as_json:
        print_json(summary)
    else:
        out.print(_plan_text(summary) if dry_run else _result_text(summary))


def student_job(
    shard_name: str,
    root: ArtifactRoot,
    shard_overrides: dict[str, Any],
    layers: list[dict[str, Any]],
    *,
    resume: Literal["auto", "never"] = "auto",
) -> Any:
    """Bind settings to a finished cache.

    Raises:
        CacheError: the cache is missing or was made by another rule than the manifest's.
        ManifestError: a setting does not fit.
        RunError: the training range is not covered.
    """
    parse(StudentManifest, merge({}, *layers), "student settings")  # what is refused whatever the shard is said first
    from stage2_student.curriculum import training_range
    from stage2_student.job import StudentJob
    from stage2_student.launch import rank

    chosen = captured_shard(shard_name, root, shard_overrides)
    if rank() == 0:  # it reads the teacher's files where they are here; once is enough
        _require_same_rule(chosen)
    settings = student_settings(chosen.shard, *layers, source="student settings")
    documents = training_range(settings, _documents(chosen, shard_name))
    run = settings.name or f"{chosen.shard.name}/{settings.norm}-{settings.curriculum}-seed{settings.seed}"
    say_remembered(chosen.manifest.overrides, shard_overrides)
    return StudentJob(
        settings=settings,
        shard=chosen.shard.name,
        cache=chosen.cache,
        cache_fingerprint=chosen.manifest.fingerprint,
        documents=documents,
        run=run,
        folder=root.run(run).path,
        resume=resume,
        teacher=teacher_name(root, chosen.shard),
    )


def _documents(chosen: CapturedShard, shard_name: str) -> int:
    """Documents there are to train on: as many as the shard asks for, or all that its source had."""
    split, wanted = chosen.manifest.splits.get("train"), chosen.shard.documents.limit
    covered = split.documents if split else 0
    if wanted > covered and not (split and split.source_exhausted):
        raise RunError(
            f"documents.limit={wanted}: the cache {chosen.cache} covers {covered} training documents; "
            f"extend it with 'pipeline cache-teacher --shard {shard_name} --set documents.limit={wanted}'"
        )
    return min(wanted, covered)


def _require_same_rule(chosen: CapturedShard) -> None:
    from stage1_teacher.rule import next_move, present_identity

    require_same(
        chosen.manifest.identity, present_identity(chosen.shard, chosen.manifest.identity), str(chosen.cache), next_move(chosen.shard)
    )


def run_student(job: Any, devices: int | None) -> dict[str, Any] | None:
    """Run or resume `job`; None in a process whose rank does not report."""
    from stage2_student.job import finished_result
    from stage2_student.launch import in_process, launch, launched_by_another, rank

    done = finished_result(job)
    if done is not None and rank() != 0:
        return None
    if done is not None:
        log.print(f"{job.run}: is finished already; nothing to do")
        return done | {"steps_executed": 0, "resumed_from": done["optimizer_steps"]}
    count = devices or _device_count()
    return in_process(job) if count == 1 or launched_by_another() else launch(job, count)


def _device_count() -> int:
    import torch

    return torch.cuda.device_count() or 1


def _plan(job: Any) -> dict[str, Any]:
    from stage2_student.training_plan import training_plan

    return training_plan(job)


def _plan_text(plan: dict[str, Any]) -> str:
    lines = [f"{plan['run']}: reads {plan['cache']}, {plan['documents']:,} training documents"]
    lines += [
        f"  phase {p['index']}: {p['active_blocks']} blocks ({p['active_layers']} layers), {p['steps']:,} steps, trains {p['trainable']}, "
        f"warm-up {p['warmup_steps']:,} steps to {p['learning_rate_peak']:.3g}, document {p['first_document']:,} on"
        for p in plan["phases"]
    ]
    lines.append(
        f"  {plan['tokens_total']:,} target tokens ({plan['tokens_unique']:,} unique), {plan['active_layer_tokens']:,} active-layer tokens"
    )
    lines.append(f"  {plan['parameters']:,} parameters, {plan['precision']}, ZeRO {plan['zero']}, offload {plan['offload']}; supported are")
    lines += [f"    ZeRO {s['zero']}: {' and '.join(s['precision'])}, offload {' or '.join(s['offload'])}" for s in plan["supported"]]
    return "\n".join(lines + [f"  {note}" for note in plan["notes"]])


def _result_text(result: dict[str, Any]) -> str:
    lines = [f"{result['run']}: validation CE {result['val_ce_start']:.4f} -> {result['val_ce']:.4f} (teacher {result['teacher_ce']:.4f})"]
    lines += [
        f"  phase {p['index']}: {p['active_layers']} layers, CE {p['val_ce']:.4f}, KL ({result['kl_kind']}) {p['val_kl']:.4f}, "
        f"KD {p['val_kd']:.4f}, PPL {p['val_ppl']:.2f}"
        for p in result["phases"]
    ]
    return "\n".join(lines)
