"""Where an update's time goes: `python tests/benchmarks/step_parts.py --root artifacts` (captures `installed-docs` there first if need be).

One student in one process, interleaved: an update from the cache, one on labels alone, one with the teacher's forward pass and top-k in
the step. Then the share of the first that its loader takes, and checkpoints of students of one block and more: seconds, bytes, the share of
training that they are at the paper's interval. CPU seconds, but for checkpoints, which wait for the disk.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from scored_documents import Teacher

from pipeline.commands.cache_teacher import run_capture
from pipeline.commands.train import student_job
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.student import StudentManifest
from stage2_student.batches import MicroBatch, MicroBatches
from stage2_student.checkpoint import Checkpoints, Position
from stage2_student.curriculum import phases
from stage2_student.engine import Processes, StudentEngine
from stage2_student.loss import IGNORE_INDEX, SparseTargets
from stage2_student.phase_models import first_model
from stage2_student.train import _Run

K = 64


class Steps:
    """One student, and the three ways to give it the documents of an update."""

    def __init__(self, root: ArtifactRoot, teacher: Teacher, layers: int, documents: int) -> None:
        shape = {"blocks": 3, "layers_per_block": layers}
        layer = {"model": shape, "global_batch_size": documents, "name": "step-parts", "tensorboard": False}
        self.job = student_job("installed-docs", root, {}, [layer])
        self.run = _Run(self.job, Processes(), lambda record: None)
        self.phase = phases(self.job.settings)[0]
        self.engine = self.run.open_engine(first_model(self.job, 3), self.phase)
        self.teacher = teacher
        self.read = MicroBatches(self.run.documents, self.engine.model.config.vocab_size, 1.0, self.run.packed)
        self.labels_only: dict[tuple[int, ...], MicroBatch] = {}
        for number in range(len(self.run.documents) // documents):
            for members in self.members(number):
                batch = self.read[members]
                self.labels_only[tuple(members)] = batch._replace(targets=_no_targets(len(batch.labels)))

    def members(self, number: int) -> list[list[int]]:
        indices, _, plan = self.run._plan(self.phase, number)
        return [[indices[place] for place in places] for places in plan[0]]

    def cached(self, members: list[int]) -> MicroBatch:
        return self.read[members]

    def labels(self, members: list[int]) -> MicroBatch:
        return self.labels_only[tuple(members)]

    @torch.no_grad()
    def online(self, members: list[int]) -> MicroBatch:
        """The teacher reads the documents now; its best K entries and the rest of the mass are the targets."""
        batch = self.labels(members)
        documents = batch.input_ids.long().split(list(batch.document_lengths), dim=1)
        hidden = [self.teacher.engine.model.model(ids, use_cache=False).last_hidden_state[0] for ids in documents]
        parts = []
        for rows in torch.cat(hidden).split(512):
            logits = rows.float() @ self.teacher.engine.head.T
            best = logits.topk(K)
            weights = (best.values - logits.logsumexp(-1, keepdim=True)).exp()
            parts.append((best.indices, weights, torch.ones_like(best.indices, dtype=torch.bool), (1 - weights.sum(-1)).clamp_min(0)))
        return batch._replace(targets=SparseTargets(*(torch.cat(part) for part in zip(*parts))))

    def update(self, number: int, give: Callable[[list[int]], MicroBatch]) -> tuple[float, float]:
        """CPU seconds of one update, and of those the seconds that giving its documents took."""
        members, giving = self.members(number), [0.0]

        def batches() -> Iterator[MicroBatch]:
            for each in members:
                started = time.process_time()
                batch = give(each)
                giving[0] += time.process_time() - started
                yield batch

        _, lengths, _ = self.run._plan(self.phase, number)
        started = time.process_time()
        self.run._accumulate(self.engine, batches(), len(members), sum(lengths) - len(lengths))
        self.engine.step(1e-5)
        return time.process_time() - started, giving[0]


def _no_targets(rows: int) -> SparseTargets:
    none = torch.zeros(rows, 1)
    return SparseTargets(none.int(), none, none.bool(), torch.ones(rows))


def middle(values: list[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.3f} ({ordered[0]:.3f} to {ordered[-1]:.3f}, {len(ordered)} rounds)"


def compare(steps: Steps, rounds: int) -> float:
    """Print the ratios; returns the median seconds of an update from the cache."""
    found: dict[str, list[float]] = {"cached over labels alone": [], "online over cached": [], "loader's share, cached": []}
    seconds = []
    updates = len(steps.run.documents) // steps.job.settings.global_batch_size
    for round_ in range(rounds + 1):
        ways = [steps.cached, steps.labels, steps.online]
        turn = round_ % 3  # each way follows each other one as often
        took = {give.__name__: steps.update(round_ % updates, give) for give in ways[turn:] + ways[:turn]}
        (cached, loading), (labels, _), (online, _) = took["cached"], took["labels"], took["online"]
        if round_:  # the first one warms up
            found["cached over labels alone"].append(cached / labels)
            found["online over cached"].append(online / cached)
            found["loader's share, cached"].append(loading / cached)
            seconds.append(cached)
    for name, values in found.items():
        print(f"{name:26s} {middle(values)}")
    return statistics.median(seconds)


def checkpoints(steps: Steps, rounds: int, seconds: float) -> None:
    """How long a save takes and how that grows; `seconds` of an update of all blocks."""
    interval = StudentManifest().checkpoint_interval
    for blocks in (1, 3):
        engine = steps.engine if blocks == 3 else steps.run.open_engine(first_model(steps.job, blocks), steps.phase)
        with tempfile.TemporaryDirectory() as folder:
            saves, size = _saves(engine, steps.run.processes, Path(folder), rounds)
        save = statistics.median(saves)
        share = "" if blocks == 1 else f"; {save / (save + interval * seconds):.5f} of training at one in {interval} updates like these"
        print(f"checkpoint of {blocks} blocks: {size / 2**20:.0f} MiB in {save:.2f} s, {size / 2**20 / save:.0f} MiB/s{share}")


def _saves(engine: StudentEngine, processes: Processes, folder: Path, rounds: int) -> tuple[list[float], int]:
    kept, seconds = Checkpoints(folder, 1, processes), []
    for number in range(1, rounds + 1):
        position: Any = Position(0, number, 1, engine.settings.zero, str(engine.dtype), engine.settings.offload)
        started = time.monotonic()
        kept.save(engine, position, number)
        seconds.append(time.monotonic() - started)
    return seconds, sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="artifacts")
    for name, default in (("rounds", 7), ("layers", 1), ("documents", 8), ("saves", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    a = parser.parse_args()
    root = ArtifactRoot.resolve(a.root)
    run_capture("installed-docs", {}, root, "all")
    steps = Steps(root, Teacher(), a.layers, a.documents)
    seconds = compare(steps, a.rounds)
    checkpoints(steps, a.saves, seconds)
    labels = sum(int((batch.labels != IGNORE_INDEX).sum()) for batch in steps.labels_only.values())
    print(f"SmolLM2-135M's student of 3 x {a.layers} layers, {labels} targets in all, k={K}; {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
