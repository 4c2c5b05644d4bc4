"""What a run can be carried out with: ZeRO stage, precision, offload. One table: tested, printed by `train --dry-run`, obeyed.

Every line of it trains all curricula, `freeze` included, on one or many processes, with float32 masters and accumulation.
"""

from typing import Any, Literal, NamedTuple

from pipeline.contract.errors import RunError

Precision = Literal["float32", "bfloat16"]
Offload = Literal["none", "optimizer", "all"]


class Engine(NamedTuple):
    """One way to carry a run out. `offload` names what lives in the host's memory: optimizer state and masters, or weights too."""

    zero: int
    precision: str
    offload: str


_PRECISIONS: dict[int, tuple[Precision, ...]] = {0: ("float32",), **dict.fromkeys((1, 2, 3), ("float32", "bfloat16"))}
_OFFLOADS: dict[int, tuple[Offload, ...]] = {
    0: ("none",),
    1: ("none", "optimizer"),
    2: ("none", "optimizer"),
    3: ("none", "optimizer", "all"),
}

SUPPORTED = [
    Engine(zero, precision, offload) for zero, precisions in _PRECISIONS.items() for precision in precisions for offload in _OFFLOADS[zero]
]

_REASONS = {
    "precision": "DeepSpeed 0.19 has no float32 accumulation of bfloat16 gradients without ZeRO; "
    "use --zero 1, which on one process costs the same, or --set precision=float32",
    "offload": "there is nothing to move where every process keeps the whole; use --zero 1 or higher, or --set offload=none",
    "weights": "only ZeRO 3 can keep the weights elsewhere; use --zero 3 or --set offload=optimizer",
}


def require_supported(engine: Engine) -> None:
    """Refuse what is not in the table.

    Raises:
        RunError: with the reason and what to use instead.
    """
    zero, precision, offload = engine
    if precision not in _PRECISIONS[zero]:
        raise RunError(f"zero={zero} with precision={precision}: {_REASONS['precision']}")
    if offload not in _OFFLOADS[zero]:
        raise RunError(f"zero={zero} with offload={offload}: {_REASONS['weights' if zero else 'offload']}")


def support_table() -> list[dict[str, Any]]:
    """One record a stage: `zero`, and the precisions and offloads that go with it."""
    return [{"zero": zero, "precision": list(_PRECISIONS[zero]), "offload": list(_OFFLOADS[zero])} for zero in _PRECISIONS]
