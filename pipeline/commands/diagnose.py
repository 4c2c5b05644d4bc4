"""`pipeline diagnose`: what happened inside a run's students, one JSON record a diagnostic under the run's folder."""

from typing import Annotated, Any

import typer

from pipeline.commands.evaluate import validation_split
from pipeline.commands.options import JsonOption, RootOption, log, only_results_on_stdout, out, print_json
from pipeline.contract.errors import RunError
from pipeline.contract.layout import ArtifactRoot


def diagnose(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's name under ROOT/runs.")],
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this diagnostic; may be given often.")] = None,
    documents: Annotated[int, typer.Option(min=1, help="Validation documents looked at where the diagnostic batch is too small.")] = 256,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Boundary scale, token types, block removal, near-identity, transitions, gradients, loss by type, agreement with the teacher."""
    with only_results_on_stdout():
        records = diagnose_run(run, only, documents, ArtifactRoot.resolve(root))
    if as_json:
        print_json(records)
    else:
        _print(run, records, ArtifactRoot.resolve(root))


def diagnose_run(name: str, only: list[str] | None, documents: int, root: ArtifactRoot) -> dict[str, Any]:
    """Write and return the records by name; those that need no cache come first, so that a missing one does not cost them.

    Raises:
        RunError: no such run, or no such diagnostic.
        CacheError: the cache is gone or another one.
    """
    from pipeline.contract.manifest.strict import parse
    from pipeline.contract.manifest.student import StudentManifest
    from pipeline.contract.process import prepare_cpu_process

    prepare_cpu_process()
    from stage2_student.diagnostics.diagnose import FROM_STUDENTS, NAMES, diagnose_metrics, diagnose_students

    folder = root.run(name)
    config = folder.read("config")
    if config is None:
        raise RunError(f"{folder.path}: holds no run; train one with 'pipeline train', whose first line names it")
    wanted = only or list(NAMES)
    unknown = [each for each in wanted if each not in NAMES]
    if unknown:
        raise RunError(f"--only {unknown[0]}: there is no such diagnostic; there are {', '.join(NAMES)}")
    settings = parse(StudentManifest, config["settings"], str(folder.path / "config.json"))
    records = diagnose_metrics(folder, settings, wanted)
    if any(each in FROM_STUDENTS for each in wanted):
        records |= diagnose_students(folder, settings, validation_split(root, folder, config), wanted, documents, log.print)
    return {each: records[each] for each in NAMES if each in records}


def _print(run: str, records: dict[str, Any], root: ArtifactRoot) -> None:
    """Where the records are, and what could not be had."""
    for name, record in records.items():
        out.print(f"{root.run(run).path / 'diagnostics' / name}.json")
        missing = [entry["found"] for entry in record.get("checkpoints", []) if isinstance(entry["found"], str)]
        for text in [record[key] for key in ("unfinished", "remark") if key in record] + missing:
            out.print(f"  {text}")
