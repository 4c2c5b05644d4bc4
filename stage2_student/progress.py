"""What a training run says while it runs: a line an evaluation, about twenty a phase, on stderr."""

import sys

from pipeline.contract.run_record import Metrics
from stage2_student.curriculum import phases
from stage2_student.job import StudentJob

LINES_PER_PHASE = 20


class StepProgress:
    """Loss, rate and time left, from the records as they are written."""

    def __init__(self, job: StudentJob) -> None:
        plan = phases(job.settings)
        self.total, self.every = plan[-1].first_step + plan[-1].steps, max(1, job.settings.steps // LINES_PER_PHASE)
        self.run, self.seconds, self.steps = job.run, 0.0, 0

    def __call__(self, record: Metrics) -> None:
        place = f"{self.run} phase {record['phase']} step {record['step']}/{self.total}"
        if record["kind"] == "val":
            print(f"{place}: validation CE {record['val/ce']:.4f}, KL {record['val/kl']:.4f}", file=sys.stderr, flush=True)
        elif record["kind"] == "train":
            self._step(place, record)

        elif record["kind"] == "guard":
            print(f"{place}: {record['guard']}", file=sys.stderr, flush=True)

    def _step(self, place: str, record: Metrics) -> None:
        rate = record["perf/tokens_per_second"]
        self.seconds, self.steps = self.seconds + record["tokens"] / rate, self.steps + 1
        if record["phase_step"] % self.every == 0:
            left = (self.total - record["step"]) * self.seconds / self.steps
            print(f"{place}: loss {record['train/loss']:.4f}, {rate:,.0f} tokens/s, about {left:,.0f} s left", file=sys.stderr, flush=True)
