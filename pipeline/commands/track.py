"""`pipeline track`: a run's metrics.jsonl to TensorBoard, wandb or trackio, after the fact or while it trains."""

from typing import Annotated, Literal

import typer

from pipeline.commands.options import JsonOption, RootOption, only_results_on_stdout, out, print_json
from pipeline.contract.errors import RunError
from pipeline.contract.layout import ArtifactRoot


def track(
    run: Annotated[str, typer.Argument(help="A run's name.")],
    to: Annotated[Literal["tensorboard", "wandb", "trackio"], typer.Option(help="What to send its metrics to.")] = "tensorboard",
    follow: Annotated[bool, typer.Option("--follow", help="Go on until the run is finished.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a run's metrics to a tracker. Training writes TensorBoard's files; wandb is offline unless WANDB_MODE is set, trackio local."""
    from stage2_student.trackers import export

    folder = ArtifactRoot.resolve(root).run(run)
    if not folder.metrics_path.is_file():
        raise RunError(f"{folder.path}: holds no metrics.jsonl; give the name of a run, for example paper-2x2/pre-joint-seed42")
    with only_results_on_stdout():
        records = export(folder, to, follow=follow)
    if as_json:
        print_json({"run": run, "to": to, "records": records})
    else:
        out.print(f"{run}: {records:,} records sent to {to}")
