"""Deal a machine's GPUs to its workers: each sees its own and no other, whatever library it loads."""

import math
import os
from collections.abc import Mapping, Sequence

from pipeline.contract.errors import PipelineError

VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = "PIPELINE_DEVICE_SHARE"
THREADS = "OMP_NUM_THREADS"


def deal(devices: Sequence[str], group: int = 1, workers: int = 1) -> list[dict[str, str]]:
    """An environment for each group of `group` neighbouring devices; more `workers` than groups share them, round and round.

    Each is told the part of its devices that it may fill, see `device_share`. Devices that make up no whole group stay idle.
    Without any device there is one environment that changes nothing.

    Raises:
        PipelineError: fewer devices than a group takes.
    """
    if not devices:
        return [{}]
    if len(devices) < group:
        raise PipelineError(
            f"{VISIBLE}={','.join(devices)}: {len(devices)} visible GPUs, a worker takes {group}; make more visible, or use fewer for each"
        )
    firsts = range(0, len(devices) - group + 1, group)
    part = shared(1 / math.ceil(workers / len(firsts)))
    return [{VISIBLE: ",".join(devices[first : first + group])} | part for first in firsts]


def shared(part: float) -> dict[str, str]:
    """The environment of a process that has `part` of its devices; the whole of them needs no word."""
    return {SHARE: repr(part)} if part < 1 else {}


def device_share() -> float:
    """The part of its devices' memory that this process may fill: others fill the rest."""
    return float(os.environ.get(SHARE, "1"))


def share_of_cores(processes: int) -> dict[str, str]:
    """The environment of one of `processes` on this machine that compute on its cores; a number of threads that the user gave stands."""
    return {THREADS: os.environ.get(THREADS) or str(max(1, (os.cpu_count() or 1) // processes))}


def visible_devices(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them: by number, GPU or MIG id. None on a CPU."""
    chosen = environment.get(VISIBLE)
    return [str(number) for number in range(_count())] if chosen is None else _listed(chosen)


def _listed(chosen: str) -> list[str]:
    """CUDA ends the list at the first -1."""
    names = [name.strip() for name in chosen.split(",")]
    return [name for name in names[: names.index("-1") if "-1" in names else None] if name]


def _count() -> int:
    import torch  # counts by the driver's library, and so leaves CUDA alone in this process

    return torch.cuda.device_count()
