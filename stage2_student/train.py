"""Stage two's loop, to be read aloud: for each phase, build the student, step through its documents, evaluate, save."""

import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from pipeline.contract.atomic_io import only_writer, sweep_temporaries
from pipeline.contract.errors import Interrupted, RunError
from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import Metrics
from pipeline.contract.schedule import learning_rate
from stage2_student.batches import MicroBatch, MicroBatches, loader_workers, read_ahead
from stage2_student.checkpoint import Checkpoints, Position
from stage2_student.curriculum import Phase, check_documents, document_order, is_trained, phases
from stage2_student.engine import Processes, StudentEngine, resolve_precision
from stage2_student.evaluate import evaluate
from stage2_student.guard_rails import GuardRails, passes_ended
from stage2_student.job import StudentJob
from stage2_student.loss import DistillationLoss, fused_distillation_loss
from stage2_student.micro_batches import Plan, padding_efficiency, plan_packed, plan_padded
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.parameters import part_of
from stage2_student.model.student import BlockStackForCausalLM
from stage2_student.model.varlen import VARLEN
from stage2_student.phase_models import phase_model, save_phase, save_student
from stage2_student.probe import is_probed, probe
from stage2_student.provenance import recorded_start
from stage2_student.result import summarize
from stage2_student.telemetry import StepClock, Telemetry

OnRecord = Callable[[Metrics], None]


def train(job: StudentJob, on_record: OnRecord = lambda record: None) -> dict[str, Any]:
    """Run or resume `job` to its end; every process of the run calls it. Returns the result record.

    Raises:
        CacheError, RunError: the cache or the run folder does not fit.
        Interrupted: a signal came; the state is saved and the same command resumes.
    """
    return _Run(job, Processes(), on_record).execute()


class StopRequest:
    """Remembers a Ctrl-C or SIGTERM; a second Ctrl-C is not held back.

    A second SIGTERM is: when a parent with several threads dies, the system may send it once for each of them.
    """

    def __init__(self) -> None:
        self.received = 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        previous = {number: signal.signal(number, self._remember) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: Any) -> None:
        if self.received and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number


@dataclass(frozen=True)
class _Resume:
    """Where a run goes on: the phase, and the updates of it that a checkpoint holds (None: the phase is not begun)."""

    phase: int
    phase_step: int | None = None
    folder: Path | None = None
    position: Position | None = None

    def step(self, settings: StudentManifest) -> int:
        """Optimizer steps over all phases that need not be done again."""
        return self.phase * settings.steps + (self.phase_step or 0)


class _Run:
    """One run in one process."""

    def __init__(self, job: StudentJob, processes: Processes, on_record: OnRecord) -> None:
        self.job, self.settings, self.processes, self.on_record = job, job.settings, processes, on_record
        self.documents = LogitCache.open(job.cache, "train")
        self.validation = LogitCache.open(job.cache, "validation")
        self._check()
        sizes = [shard.documents for shard in self.documents.record.shards]
        self.order = document_order(self.settings, sizes, job.documents)
        self.phases = phases(self.settings)
        self.packed = self.settings.attention == "varlen"
        self.checkpoints = Checkpoints(job.record.checkpoints, self.settings.keep_checkpoints, processes)
        self.stop = StopRequest()
        self.steps_executed = 0
        self.clock = StepClock()
        self.guards = GuardRails(job.run, self.settings.nonfinite_limit, [])
        self.skipped = False
        self.evaluations: dict[tuple[int, int], Metrics] = {}
        self.probed: set[tuple[int, int]] = set()

    def _check(self) -> None:
        resolve_precision(self.settings)
        check_documents(self.settings, self.job.documents, str(self.job.cache))
        if self.settings.global_batch_size < self.processes.world_size:
            raise RunError(
                f"global_batch_size={self.settings.global_batch_size}: {self.processes.world_size} processes need a document each; "
                "use a larger batch or fewer devices"
            )

    def execute(self) -> dict[str, Any]:
        with self._alone(), self.stop.listening():
            self._sweep()
            resume = self._resume_point()
            with recorded_start(self.job, self.processes, resume.step(self.settings)):
                return self._go_on(resume)

    def _go_on(self, resume: "_Resume") -> dict[str, Any]:
        started = time.monotonic()
        self._forget_after(resume)
        before = list(self.job.record.metrics())
        self.evaluations = {(m["phase"], m["phase_step"]): m for m in before if m["kind"] == "val"}
        self.probed = {(m["phase"], m["phase_step"]) for m in before if m["kind"] == "probe"}
        self.guards = GuardRails(self.job.run, self.settings.nonfinite_limit, before)
        for phase in self.phases[resume.phase :]:
            self._phase(phase, resume if phase.index == resume.phase else None)
        result = summarize(self.job, self.documents, self.validation, self.order, self.phases)
        resumed_from = resume.step(self.settings)
        result |= {"steps_executed": self.steps_executed, "resumed_from": resumed_from, "seconds": time.monotonic() - started}
        if self.processes.rank == 0:
            self.job.record.write("result", result)
            self.checkpoints.discard()
        self.processes.barrier()
        return result

    def _alone(self) -> AbstractContextManager[None]:
        """Rank 0 holds the run's folder against a second start of the same command."""
        return only_writer(self.job.folder) if self.processes.rank == 0 else nullcontext()

    def _sweep(self) -> None:
        """Remove the halves that a killed process left."""
        if self.processes.rank == 0:
            sweep_temporaries(self.job.folder)
        self.checkpoints.clean()

    def _resume_point(self) -> "_Resume":
        """Where to go on: a finished phase is a folder that exists, a started one may have a checkpoint."""
        first = next((phase.index for phase in self.phases if not self.job.record.phase(phase.index).is_dir()), len(self.phases))
        checkpoint = self.checkpoints.latest()
        if checkpoint and checkpoint[1].phase == first:
            return _Resume(first, checkpoint[1].phase_step, *checkpoint)
        return _Resume(first)

    def _forget_after(self, resume: "_Resume") -> None:
        """Drop metrics of steps that will be done again."""
        if self.processes.rank == 0:
            done = -1 if resume.phase_step is None else resume.phase_step
            self.job.record.keep_metrics([m for m in self.job.record.metrics() if (m["phase"], m["phase_step"]) <= (resume.phase, done)])
        self.processes.barrier()

    def _phase(self, phase: Phase, resume: "_Resume | None") -> None:
        engine = self.open_engine(phase_model(self.job, phase), phase)
        done = 0
        if resume and resume.folder and resume.position:
            self.checkpoints.restore(resume.folder, resume.position, engine)
            done = resume.position.phase_step
        self._evaluate(engine, phase, done)
        self.telemetry = self._telemetry(engine, phase)
        batches = self._batches(engine, phase, done)
        for phase_step in range(done, phase.steps):
            stopping = self._step(engine, phase, phase_step, batches)
            self._after_step(engine, phase, phase_step + 1, stopping)
        if self.settings.keep_phase_ends:
            self.checkpoints.save_phase_end(engine, self._position(engine, phase, phase.steps))
        save_phase(self.job, phase, engine, self._append_cost(phase))
        engine.close()

    def _position(self, engine: StudentEngine, phase: Phase, phase_step: int) -> Position:
        s = self.settings
        return Position(phase.index, phase_step, self.processes.world_size, s.zero, str(engine.dtype), s.offload)

    def open_engine(self, model: BlockStackForCausalLM, phase: Phase) -> StudentEngine:
        """An engine that trains of `model` what the phase says."""
        if self.settings.gradient_checkpointing:
            # non-reentrant: a frozen prefix has no input that needs a gradient, and is not recomputed
            model.gradient_checkpointing_enable({"use_reentrant": False})
        if self.packed:
            model.set_attn_implementation(VARLEN)
        return StudentEngine(model, self.settings, self.processes, lambda name: is_trained(name, phase, self.settings))

    def _telemetry(self, engine: StudentEngine, phase: Phase) -> Telemetry:
        trained = partial(is_trained, phase=phase, settings=self.settings)
        config = cast(BlockStackConfig, engine.model.config)
        clipped = [m["optim/clipped"] for m in self.job.record.metrics() if m["kind"] == "train" and m["phase"] == phase.index]
        return Telemetry(config, trained, self.processes.device, engine.dtype, self.processes.world_size, clipped)

    def _after_step(self, engine: StudentEngine, phase: Phase, phase_step: int, stopping: bool) -> None:
        """Evaluate and save when it is due; leave when a signal came."""
        self._evaluate(engine, phase, phase_step)
        if self.settings.snapshot_interval and phase_step % self.settings.snapshot_interval == 0 and phase_step < phase.steps:
            save_student(self.job.record.snapshots / f"step-{phase.first_step + phase_step:08d}", phase, engine, self._append_cost(phase))
        if stopping or (phase_step % self.settings.checkpoint_interval == 0 and not self.skipped):
            with self.clock("checkpoint"):
                self.checkpoints.save(engine, self._position(engine, phase, phase_step), phase.first_step + phase_step)
        if stopping:
            total = sum(each.steps for each in self.phases)
            raise Interrupted(
                f"{self.job.run}: stopped by a signal after step {phase.first_step + phase_step} of {total}, "
                "state saved; run the same command again to go on"
            )

    def _plan(self, phase: Phase, phase_step: int) -> tuple[list[int], list[int], Plan]:
        """Documents of an update, their input tokens, and how they fall to ranks and micro-batches, by their place."""
        size = self.settings.global_batch_size
        indices = self.order.at(phase.first_position + phase_step * size, size).tolist()
        lengths = [int(self.documents.input_tokens[index]) for index in indices]
        return indices, lengths, self._cut(lengths)

    def _cut(self, lengths: list[int]) -> Plan:
        s = self.settings
        if self.packed:
            return plan_packed(lengths, self.processes.world_size, s.micro_batch_tokens)
        return plan_padded(lengths, self.processes.world_size, s.micro_batch_tokens, s.micro_batch_overhead)

    def _batches(self, engine: StudentEngine, phase: Phase, first: int) -> Iterator[MicroBatch]:
        """This rank's micro-batches from an update on to the end of the phase."""

        def order() -> Iterator[list[int]]:
            for phase_step in range(first, phase.steps):
                indices, _, plan = self._plan(phase, phase_step)
                yield from ([indices[place] for place in members] for members in plan[self.processes.rank])

        batches = MicroBatches(self.documents, engine.model.config.vocab_size, self.settings.temperature, self.packed)
        return read_ahead(batches, order(), loader_workers(self.settings.loader_workers, self.processes.device))

    def _step(self, engine: StudentEngine, phase: Phase, phase_step: int, batches: Iterator[MicroBatch]) -> bool:
        """One update on `global_batch_size` documents; returns whether any process was told to stop."""
        self.clock.start()
        indices, lengths, plan = self._plan(phase, phase_step)
        tokens = max(1, sum(lengths) - len(lengths))
        sums = self._accumulate(engine, batches, len(plan[self.processes.rank]), tokens)
        with self.clock("compute"):  # a device catches up here, and so do other ranks
            loss, kl, kd, ce, student_tail, stopping, seen = self.processes.sum(sums).tolist()
        rate = learning_rate(phase_step, self.settings)
        norms = self._gradient_norms(engine, phase_step)
        with self.clock("update"):
            norm = engine.step(rate)
        self.steps_executed += 1
        self._watch(phase, phase_step, loss, norm, tokens, indices)
        if not math.isfinite(norm):
            return stopping > 0
        self._record(
            "train",
            phase,
            phase_step + 1,
            {
                "train/loss": loss,
                "train/kl": kl,
                "train/kd": kd,
                "train/ce": ce,
                "train/student_tail_mass": student_tail,
                "optim/lr": rate,
                "optim/grad_norm": norm,
                **norms,
                "growth/active_layers": phase.active_layers,
                **self.telemetry.of_update(self.clock.stop(), lengths, tokens, clipped=norm > self.settings.gradient_clip),
                "perf/padding_efficiency": 1.0 if self.packed else padding_efficiency(lengths, plan),
                "tokens": round(seen),
            },
        )
        return stopping > 0

    def _gradient_norms(self, engine: StudentEngine, phase_step: int) -> Metrics:
        """By block, head and boundary norm, where they are due: gathering a gradient costs what a step's own collectives do."""
        every = self.settings.gradient_norms_interval
        if not every or phase_step % every:
            return {}
        return {f"optim/grad_norm/{part}": norm for part, norm in engine.gradient_norms(part_of).items()}

    def _accumulate(self, engine: StudentEngine, batches: Iterator[MicroBatch], count: int, tokens: int) -> torch.Tensor:
        """Forward and backward over this rank's next `count` micro-batches.

        Returns [7]: loss, kl, kd, ce, student tail as shares of the global means, whether this rank was told to stop, targets seen.
        """
        sums = torch.zeros(7, dtype=torch.float64, device=self.processes.device)
        for number in range(count):
            with self.clock("load"):
                batch = next(batches)
            with self.clock("compute"):
                loss = self._loss(engine, batch.to(self.processes.device), tokens)
                engine.backward(loss.loss, last=number == count - 1)
                sums[6] += batch.tokens
                sums[:5] += torch.stack([part.detach().double() for part in loss])
        sums[5] = float(self.stop.received != 0)
        return sums

    def _loss(self, engine: StudentEngine, batch: MicroBatch, tokens: int) -> DistillationLoss:
        s = self.settings
        return engine.engine(
            batch.input_ids,
            document_lengths=batch.document_lengths,
            head_loss=lambda hidden, weight: fused_distillation_loss(
                hidden.flatten(0, 1),
                weight,
                batch.labels,
                batch.targets,
                alpha=s.alpha,
                gamma=s.gamma,
                temperature=s.temperature,
                tail=s.decided_tail,
                kernels=s.loss_kernels,
                tokens=tokens,
            ),
        )

    def _watch(self, phase: Phase, phase_step: int, loss: float, norm: float, tokens: int, indices: list[int]) -> None:
        """Write down what the guard rails see in a step that is done.

        Raises:
            RunError: too many steps were not finite, or one moved the weights by a loss that was not.
        """
        step, documents = phase_step + 1, self.job.documents
        self.skipped = not math.isfinite(norm)
        if passes_ended(phase.first_position + phase_step * len(indices), len(indices), documents):
            self._record("guard", phase, step, {"guard": "pass_end", "documents": documents})
        if self.skipped:
            self._record("guard", phase, step, self.guards.skipped(loss, tokens, indices))
            self.guards.require_few(phase.first_step + step, indices)
        elif not math.isfinite(loss):
            raise RunError(
                f"{self.job.run}: the loss is {loss} at step {phase.first_step + step} and its gradient is finite; "
                "no checkpoint was touched: lower learning_rate under another name"
            )
        elif (spike := self.guards.spike(phase.index, loss)) is not None:
            self._record("guard", phase, step, spike)

    def _evaluate(self, engine: StudentEngine, phase: Phase, phase_step: int) -> None:
        """Evaluate where it is due, once at each place: a resumed run neither repeats what is on record nor adds to it."""
        self._probe(engine, phase, phase_step)
        if phase_step != phase.steps and phase_step % self.settings.eval_interval:
            return
        if (phase.index, phase_step) not in self.evaluations:
            with self.clock("evaluate"):
                values = evaluate(engine.model, self.validation, self.settings, self.processes).as_metrics()
            if not math.isfinite(values["val/ce"]):
                raise RunError(
                    f"{self.job.run}: validation loss is {values['val/ce']} at step {phase.first_step + phase_step}; "
                    "no checkpoint was touched: lower learning_rate under another name"
                )
            self._record("val", phase, phase_step, values)
            self.evaluations[phase.index, phase_step] = values
            cost = self._append_cost(phase)
            if phase_step == 0 and cost is not None:
                self._record("event", phase, 0, {"event": "append", "block": phase.active_blocks - 1, "j0": cost})
        self.processes.barrier()

    def _probe(self, engine: StudentEngine, phase: Phase, phase_step: int) -> None:
        if is_probed(phase_step, phase.steps, self.settings) and (phase.index, phase_step) not in self.probed:
            self._record("probe", phase, phase_step, probe(engine.model, self.validation, self.settings, self.processes))
            self.probed.add((phase.index, phase_step))

    def _append_cost(self, phase: Phase) -> float | None:
        """J0: validation CE just after appending minus just before, no update between; None where nothing was appended."""
        if not phase.appends:
            return None
        before = self.evaluations[phase.index - 1, self.phases[phase.index - 1].steps]
        return self.evaluations[phase.index, 0]["val/ce"] - before["val/ce"]

    def _record(self, kind: str, phase: Phase, phase_step: int, values: Metrics) -> None:
        record = {"kind": kind, "step": phase.first_step + phase_step, "phase": phase.index, "phase_step": phase_step, **values}
        if self.processes.rank == 0:
            self.job.record.append_metrics(record)
            self.on_record(record)
