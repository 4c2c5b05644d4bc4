"""`pipeline report`: tables and figures of an experiment or of single runs, on one page."""

from pathlib import Path
from typing import Annotated, Any

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, out, print_json
from pipeline.contract.errors import RunError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.find import names


def report(
    what: Annotated[list[str], typer.Argument(metavar="EXPERIMENT|RUN...", help="One experiment, or the names of runs.")],
    overrides: SetOption = None,
    folder: Annotated[str | None, typer.Option("--out", help="Where to write [default: ROOT/reports/NAME].")] = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report: every table and figure that the runs can fill, beside the paper's numbers."""
    written = build(what, overrides, ArtifactRoot.resolve(root), Path(folder) if folder else None)
    from pipeline.report.build import table_1_text

    if as_json:
        print_json({"report": str(written.page), "table_1": written.table_1, "noise": written.noise})
    else:
        out.print(f"{table_1_text(written)}\n\nreport: {written.page}")


def build(what: list[str], overrides: list[str] | None, root: ArtifactRoot, folder: Path | None) -> Any:
    """Build a report from an experiment's runs or from the runs named."""
    from pipeline.commands.run import workflow_of
    from pipeline.report.build import build_report

    if len(what) == 1 and (what[0] in names("experiments") or what[0].endswith((".yaml", ".yml"))):
        workflow = workflow_of(what[0], overrides, str(root.path))
        experiment = workflow.experiment
        return build_report(
            experiment.name, workflow.runs(), folder or root.report(experiment.name), caveat=experiment.caveat, about=experiment.about
        )
    runs = [root.run(name) for name in what]
    for name, run in zip(what, runs, strict=True):
        if run.read("config") is None:
            raise RunError(
                f"{name}: {run.path} holds no run and no experiment has that name; experiments are {', '.join(names('experiments'))}"
            )
    return build_report("-".join(name.replace("/", "-") for name in what)[:80], runs, folder or root.report(what[0].replace("/", "-")))
