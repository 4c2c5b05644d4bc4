"""Options that commands share, and how they speak: results on stdout, everything else on stderr."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Annotated, Any

import typer
from rich.console import Console

from pipeline.contract.finite import finite

SetOption = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a manifest's key; may be given often.")]
RootOption = Annotated[str | None, typer.Option("--root", help="Where artifacts live [default: $PIPELINE_HOME or ./artifacts].")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ShardOption = Annotated[str, typer.Option("--shard", help="A shard's name, or a path to its YAML file.")]

log = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
out = Console(highlight=False, markup=False, soft_wrap=True)


def note(line: str) -> None:
    """Something worth knowing that stops nothing."""
    log.print(f"note: {line}")


@contextmanager
def only_results_on_stdout() -> Iterator[None]:
    """Send what libraries print to stderr, from Python and from C: stdout is for the result."""
    sys.stdout.flush()
    saved = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(saved, 1)
        os.close(saved)


def say_remembered(remembered: dict[str, Any], given: dict[str, Any]) -> None:
    """Name the settings that come from a cache's capture and not from this command line."""
    settings = [f"{key}={value}" for key, value in remembered.items() if key not in given and key != "name"]
    if settings:
        log.print(f"as captured with --set {' --set '.join(settings)}")


def print_json(value: Any) -> None:
    """One object on stdout; NaN and infinities, which JSON has not, as null."""
    print(json.dumps(finite(value)))
