"""`pipeline watch`: an experiment's capture and runs while they go on, in the terminal or on a local page. Writes nothing."""

import io
import sys
from typing import Annotated

import typer

from pipeline.commands.options import JsonOption, RootOption, SetOption, note, out, print_json
from pipeline.commands.run import workflow_of
from pipeline.contract.errors import PipelineError, RunError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.find import names
from pipeline.shard_choice import root_hint
from pipeline.watch.capture_state import CaptureWatch
from pipeline.watch.picture import Watch
from pipeline.watch.run_state import RunWatch
from pipeline.workflow import Workflow

MUCH = 2**26
"""Bytes of records that take a second or more to read."""


def watch(
    what: Annotated[list[str], typer.Argument(metavar="EXPERIMENT|RUN...", help="One experiment, or the names of runs.")],
    overrides: SetOption = None,
    serve: Annotated[bool, typer.Option("--serve", help="Show it on a page that refreshes itself, instead of in the terminal.")] = False,
    host: Annotated[
        str, typer.Option(help="--serve: the address to listen at; any but the loopback's shows the page to the network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="--serve: the port; 0 takes a free one.")] = 8642,
    every: Annotated[float, typer.Option(min=0.2, max=3600, metavar="SECONDS", help="Between two looks.")] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end, as is done where stdout is no terminal.")] = False,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch runs and their capture: state, step, losses, rate, time left, guard rails. Ends when all runs are done, or with Ctrl-C."""
    if serve and once:
        raise PipelineError("--once: a page has no end of its own; leave out --once or --serve")
    try:
        watched = watch_of(what, overrides, ArtifactRoot.resolve(root))
        if (unread := sum(run.unread() for run in watched.runs)) > MUCH:
            note(f"reading {unread / 2**20:,.0f} MiB of records; later only what is new")
        if serve:
            _serve(watched, host, port, every, as_json)
        elif as_json:
            print_json(watched.look().as_json())
        else:
            _show(watched, every, once)
    except KeyboardInterrupt:
        return


def _show(watched: Watch, every: float, once: bool) -> None:
    from pipeline.watch.terminal import show_live, show_once

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # marks that it has no letters for become question marks; the words stay
    if once or not out.is_terminal or out.is_dumb_terminal:
        show_once(watched.look(), out)
    else:
        show_live(watched.look, every)


def _serve(watched: Watch, host: str, port: int, every: float, as_json: bool) -> None:
    from pipeline.watch.server import open_server

    with open_server(watched, host, port, every) as server:
        if server.is_public:
            note(f"{host}: whoever can reach this machine can read the page")
        if as_json:
            print_json({"experiment": watched.name, "url": server.url})
        else:
            out.print(f"{watched.name}: {server.url} (Ctrl-C ends the page; the runs go on)")
        sys.stdout.flush()
        server.serve_forever()


def watch_of(what: list[str], overrides: list[str] | None, root: ArtifactRoot) -> Watch:
    """What to look at: an experiment, whatever is there of it yet, or runs that are there.

    Raises:
        ManifestError: the experiment does not fit.
        RunError: a name is neither an experiment's nor a run's.
    """
    if len(what) == 1 and (what[0] in names("experiments") or what[0].endswith((".yaml", ".yml"))):
        return _experiment(workflow_of(what[0], overrides, root.location), what[0], root)
    runs = [RunWatch(name, root.run(name)) for name in what]
    for name in what:
        if not root.run(name).path.is_dir():
            raise RunError(
                f"{name}: no experiment has that name and {root.run(name).path} holds no run; "
                f"experiments are {', '.join(names('experiments'))}"
            )
    return Watch(", ".join(what), runs)


def _experiment(workflow: Workflow, named: str, root: ArtifactRoot) -> Watch:
    experiment = workflow.experiment.name
    runs = [RunWatch(name, root.run(name), settings) for name, settings in workflow.students()]
    capture = CaptureWatch(workflow.cache, workflow.shard)
    return Watch(experiment, runs, capture, f"pipeline run {named}{root_hint(root)}", root.report(experiment) / "index.html")
