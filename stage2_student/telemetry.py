"""What an update costs: seconds by part, loader wait, padding, memory, and the share of a device's peak where that is known.

Host clocks, one reading a part. On CUDA the host runs ahead of the device: the wait for the loader is then an upper bound of the time
that a device idles for it, and `compute` ends where the loss is read.
"""

import resource
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from pipeline.contract.run_record import Metrics
from stage2_student.flops import document_flops
from stage2_student.model.config import BlockStackConfig
from stage2_student.peaks import peak_flops

CLIP_WINDOW = 100
"""Updates of a phase over which the share of clipped ones is told."""


UPDATE = ("load", "compute", "update")


class StepClock:
    """Seconds of one update by part. `evaluate` and `checkpoint` lie between updates and are told with the next one."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.started = time.monotonic()

    def start(self) -> None:
        """An update begins. What one before left that came to nothing is forgotten."""
        self.started = time.monotonic()
        for part in UPDATE:
            self.seconds.pop(part, None)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.monotonic() - started

    def stop(self) -> Metrics:
        """The update has ended: what to record of it. Forgets everything."""
        whole, parts = time.monotonic() - self.started, self.seconds
        self.seconds = {}
        shown = {f"perf/seconds/{part}": seconds for part, seconds in parts.items()}
        return {"perf/seconds": whole, **shown, "perf/loader_wait": parts.get("load", 0.0) / whole}


class Telemetry:
    """What is recorded of each update of a phase beside its losses; `peak` FLOP/s of a device, None where it is not known.

    `before` says which updates of the phase were clipped before a resume.
    """

    def __init__(
        self,
        config: BlockStackConfig,
        is_trained: Callable[[str], bool],
        device: torch.device,
        dtype: torch.dtype,
        ranks: int,
        before: Iterable[bool] = (),
    ) -> None:
        self._flops, self._device, self._ranks = document_flops(config, is_trained), device, ranks
        self._clipped = deque(before, maxlen=CLIP_WINDOW)
        self.peak = peak_flops(torch.cuda.get_device_name(device), dtype) if device.type == "cuda" else None

    def of_update(self, timings: Metrics, lengths: Sequence[int], tokens: int, *, clipped: bool) -> Metrics:
        """`lengths` are the input tokens of the update's documents, `tokens` its targets; memory is this process's so far."""
        seconds = timings["perf/seconds"]
        self._clipped.append(clipped)
        record = {"optim/clipped": clipped, "optim/clip_fraction": sum(self._clipped) / len(self._clipped)}
        record |= {"perf/tokens_per_second": tokens / seconds, **timings, "perf/memory_gib": _memory(self._device)}
        if self.peak is not None:
            flops = sum(self._flops(length) for length in lengths)
            record["perf/mfu"] = flops / (seconds * self._ranks * self.peak)
        return record


def _memory(device: torch.device) -> float:
    """The most that was held at a time, in GiB: by torch on a GPU, by the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**30
    if (status := Path("/proc/self/status")).exists():  # rusage's maximum begins with that of the process that started this one
        return int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0]) / 2**20
    unit = 1 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30
