"""One accumulated step under every ZeRO stage and budget, by the training loop's own code; rank 0 saves the gradients.

`python -m torch.distributed.run ... gradient_worker.py ROOT OUT`, or imported.
"""

import sys
from pathlib import Path

import torch
from runs import job

from stage2_student.batches import MicroBatches
from stage2_student.curriculum import is_trained, phases
from stage2_student.engine import StudentEngine
from stage2_student.micro_batches import plan_step
from stage2_student.phase_models import phase_model
from stage2_student.train import _Run

BATCHES = {"ragged": [0, 3, 5, 7, 8, 11, 2], "one short document a rank": [4, 0]}
BUDGETS = {"one document": 1, "some": 100, "all": 10_000}
ZEROS = (0, 1, 2)


def one_step(root: Path, indices: list[int], budget: int, zero: int, precision: str = "float32") -> dict[str, torch.Tensor]:
    """Gradients by name before the optimizer, the norm that the step reports, the step's summed loss parts."""
    chosen = job(root, zero=zero, micro_batch_tokens=budget, precision=precision, norm="post")
    run, phase = make_run(chosen), phases(chosen.settings)[0]
    engine = StudentEngine(
        phase_model(chosen, phase), chosen.settings, run.processes, lambda name: is_trained(name, phase, chosen.settings)
    )
    lengths = [int(run.documents.input_tokens[index]) for index in indices]
    plan = plan_step(lengths, run.processes.world_size, budget)[run.processes.rank]
    read = MicroBatches(run.documents, engine.model.config.vocab_size, 1.0)
    batches = (read[[indices[place] for place in members]] for members in plan)
    sums = run._accumulate(engine, batches, len(plan), sum(lengths) - len(lengths))
    found = engine.gradients()
    found["sums"] = run.processes.sum(sums)
    found["norm"] = torch.tensor(engine.step(0.0))
    engine.close()
    return found


def make_run(chosen) -> _Run:
    from stage2_student.engine import Processes

    return _Run(chosen, Processes(), lambda record: None)


def all_settings(root: Path) -> dict[str, dict[str, torch.Tensor]]:
    torch.set_num_threads(1)
    return {
        f"{name}, zero {zero}, {budget}": one_step(root, indices, BUDGETS[budget], zero)
        for name, indices in BATCHES.items()
        for zero in ZEROS
        for budget in BUDGETS
    }


def main() -> None:
    found = all_settings(Path(sys.argv[1]))
    if torch.distributed.get_rank() == 0:
        torch.save(found, sys.argv[2])


if __name__ == "__main__":
    main()
