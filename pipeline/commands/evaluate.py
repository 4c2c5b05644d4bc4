"""`pipeline evaluate`: a finished phase of a run on the cached validation split."""

from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RootOption, only_results_on_stdout, out, print_json
from pipeline.contract.errors import RunError
from pipeline.contract.layout import ArtifactRoot


def evaluate(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name under ROOT/runs.")],
    phase: Annotated[int | None, typer.Option(min=0, help="Which phase's end [default: the last finished one].")] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a student: CE, KL, KD and PPL beside the teacher's own CE."""
    with only_results_on_stdout():
        values = evaluate_run(run, phase, ArtifactRoot.resolve(root))
    if as_json:
        print_json(values)
    else:
        out.print(
            f"{run} phase {values['phase']}: CE {values['val_ce']:.4f} (teacher {values['teacher_ce']:.4f}), "
            f"KL ({values['kl_kind']}) {values['val_kl']:.4f}, KD {values['val_kd']:.4f}, PPL {values['val_ppl']:.2f}, "
            f"{values['val_tokens']:,} target tokens"
        )


def evaluate_run(name: str, phase: int | None, root: ArtifactRoot) -> dict[str, Any]:
    """Load the student of a phase and evaluate it.

    Raises:
        RunError: no such run, or that phase is not finished.
        CacheError: the cache is gone or another one.
    """
    folder = root.run(name)
    config = folder.read("config")
    if config is None:
        raise RunError(f"{folder.path}: holds no run; train one with 'pipeline train', whose first line names it")
    finished = sorted(int(path.name.removeprefix("phase-")) for path in (folder.path / "phases").glob("phase-*"))
    if not finished or (phase is not None and phase not in finished):
        raise RunError(
            f"{name}: phase {phase if phase is not None else 0} is not finished (finished: {finished or 'none'}); "
            "run the training command again to go on"
        )
    return _evaluate(root, folder, config, finished[-1] if phase is None else phase)


def validation_split(root: ArtifactRoot, folder: Any, config: dict[str, Any]) -> Any:
    """The validation split of the cache that a run was trained on.

    Raises:
        CacheError: the cache is gone.
        RunError: it is another one.
    """
    from pipeline.contract.logit_cache import LogitCache

    validation = LogitCache.open(root.cache(config["shard"]), "validation")
    if validation.manifest.fingerprint != config["cache_fingerprint"]:
        raise RunError(
            f"{folder.path}: was trained on cache {config['cache_fingerprint']}, {validation.store} is {validation.manifest.fingerprint}; "
            "evaluate with the cache it was trained on"
        )
    return validation


def _evaluate(root: ArtifactRoot, folder: Any, config: dict[str, Any], phase: int) -> dict[str, Any]:
    from pipeline.contract.manifest.strict import parse
    from pipeline.contract.manifest.student import StudentManifest
    from stage2_student.engine import Processes, resolve_precision
    from stage2_student.evaluate import evaluate, teacher_ce
    from stage2_student.model.student import BlockStackForCausalLM

    validation = validation_split(root, folder, config)
    settings = parse(StudentManifest, config["settings"], str(folder.path / "config.json"))
    processes = Processes()
    model = BlockStackForCausalLM.from_pretrained(folder.phase(phase)).to(processes.device, resolve_precision(settings))
    values = evaluate(model, validation, settings, processes)
    return {
        "run": config["run"],
        "phase": phase,
        "val_ce": values.ce,
        "val_kl": values.kl,
        "val_kd": values.kd,
        "val_ppl": values.ppl,
        "val_tokens": values.tokens,
        "kl_kind": settings.tail,
        "teacher_ce": teacher_ce(validation),
    }
