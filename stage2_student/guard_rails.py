"""What is watched while a run trains, written down when it happens and counted in the result.

    nonfinite    the norm of a step's gradient is not finite: no weight and no moment moves, the step's documents are passed over, and
                 no checkpoint is due after it; past `nonfinite_limit` of them the run ends, with exit code 2
    loss_spike   a step's loss is more than SPIKE_SIGMAS standard deviations above the mean of the SPIKE_WINDOW losses before it in its
                 phase, once there are SPIKE_LEAST; the step counts all the same
    pass_end     the stream of documents came to the end of the cached range and began again (`data: fresh` refuses that beforehand)

A process that dies and a disk that is full end the run with exit code 2; `provenance.json` says so, and the same command resumes.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Iterable

from pipeline.contract.errors import RunError
from pipeline.contract.run_record import Metrics

SPIKE_WINDOW, SPIKE_LEAST, SPIKE_SIGMAS = 200, 20, 6.0


class GuardRails:
    """The watch over one run, which goes on from what is on record: a resumed run counts as one that never stopped."""

    def __init__(self, run: str, nonfinite_limit: int, metrics: Iterable[Metrics]) -> None:
        self.run, self.limit = run, nonfinite_limit
        self.nonfinite, self._phase = 0, -1
        self._losses: deque[float] = deque(maxlen=SPIKE_WINDOW)
        for record in metrics:
            if record["kind"] == "train":
                self._remember(record["phase"], record["train/loss"])
            self.nonfinite += record.get("guard") == "nonfinite"

    def spike(self, phase: int, loss: float) -> Metrics | None:
        """The record of a spike, if the next loss of `phase` is one."""
        before = self._losses if phase == self._phase else ()
        found = None
        if len(before) >= SPIKE_LEAST:
            mean, deviation = statistics.fmean(before), statistics.pstdev(before)
            if loss > mean + SPIKE_SIGMAS * deviation:
                found = {"guard": "loss_spike", "train/loss": loss, "mean": mean, "deviation": deviation}
        self._remember(phase, loss)
        return found

    def _remember(self, phase: int, loss: float) -> None:
        if phase != self._phase:
            self._phase = phase
            self._losses.clear()
        self._losses.append(loss)

    def skipped(self, loss: float, tokens: int, documents: list[int]) -> Metrics:
        """The record of a step that was not finite. `require_few` is asked once it is written."""
        self.nonfinite += 1
        return {"guard": "nonfinite", "loss": loss if math.isfinite(loss) else str(loss), "tokens": tokens, "documents": sorted(documents)}

    def require_few(self, step: int, documents: list[int]) -> None:
        """
        Raises:
            RunError: more steps were not finite than `nonfinite_limit` allows.
        """
        if self.nonfinite > self.limit:
            raise RunError(
                f"{self.run}: the gradient is not finite at step {step} (documents {sorted(documents)[:4]}...), and "
                f"nonfinite_limit={self.limit} such steps are allowed; no checkpoint was touched: "
                f"lower learning_rate under another name, or go on with --set nonfinite_limit={2 * self.nonfinite}"
            )


def passes_ended(position: int, count: int, documents: int) -> int:
    """How often the cached range of `documents` comes to its end in `count` documents of the stream from `position` on."""
    return (position + count) // documents - position // documents


def guard_counts(metrics: Iterable[Metrics]) -> dict[str, int]:
    """How often each happened: `nonfinite`, `loss_spike`, `pass_end`."""
    seen = Counter(record["guard"] for record in metrics if record["kind"] == "guard")
    return {guard: seen[guard] for guard in ("nonfinite", "loss_spike", "pass_end")}
