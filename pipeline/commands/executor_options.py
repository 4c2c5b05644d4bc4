"""`--executor` and what belongs to it: where the work of a command is done."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import typer

from pipeline.contract.errors import PipelineError

ExecutorOption = Annotated[Literal["local", "ray"], typer.Option("--executor", help="Where workers run: this machine, or a Ray cluster.")]
WorkerResourcesOption = Annotated[
    str | None,
    typer.Option(
        "--worker-resources",
        metavar="JSON",
        help='ray: of each worker, as {"GPU": 0.5, "CPU": 4} [default: one GPU where there are any, else one CPU].',
    ),
]
RayAddressOption = Annotated[
    str | None,
    typer.Option("--ray-address", metavar="HOST:PORT", help="ray: the cluster to join [default: $RAY_ADDRESS, else one of this machine]."),
]


@contextmanager
def chosen_executor(name: str, resources: str | None, address: str | None) -> Iterator[Any]:
    """The executor that options name: None for local, which each stage starts as it needs it.

    Raises:
        PipelineError: Ray is not installed, or its options do not fit.
    """
    if name == "local":
        if resources or address:
            option = "--worker-resources" if resources else "--ray-address"
            raise PipelineError(f"{option}: belongs to --executor ray; add that, or leave it out")
        yield None
        return
    amounts = None if resources is None else _amounts(resources)
    if find_spec("ray") is None:
        raise PipelineError("--executor ray: Ray is not installed; pip install 'block-stack-distillation[ray]' (or 'ray>=2.60,<3')")
    from pipeline.executors.ray import ray_executor

    with ray_executor(amounts, address) as executor:
        yield executor


def _amounts(text: str) -> dict[str, float]:
    """Amounts by name of resource, each above 0. Above 1 they are whole, as Ray has it."""
    try:
        amounts = json.loads(text)
    except ValueError:
        amounts = None
    if not isinstance(amounts, dict) or not amounts or not all(map(_is_amount, amounts.values())):
        raise PipelineError(
            f"--worker-resources {text}: takes amounts above 0 by name as JSON, a part of 1 or whole ones; "
            """for example '{"GPU": 0.5, "CPU": 4}'"""
        )
    return {name: float(amount) for name, amount in amounts.items()}


def _is_amount(amount: Any) -> bool:
    is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool) and 0 < amount < float("inf")
    return is_number and (amount < 1 or amount == int(amount))
