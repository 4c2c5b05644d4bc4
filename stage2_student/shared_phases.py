"""Phases that several runs have in common are trained once.

A phase starts with a new optimizer, so what it makes depends on the weights it starts from, the documents it draws and its settings
alone. Where two runs agree in all of these, phase after phase from the first on, the later run takes the earlier one's weights and
records and goes on from there; its own record says from whom.
"""

import itertools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.contract.atomic_io import atomic_path, only_writer
from pipeline.contract.hashing import hash_json
from stage2_student.curriculum import Phase, document_order, is_trained, phases
from stage2_student.job import StudentJob, run_identity

# settings that act through a phase's own facts: depth, documents, what is trained
_IN_THE_PHASE = {"documents", "curriculum", "phase_blocks", "freeze", "data", "order", "train_documents"}
PARTS = ("lm_head.", "boundary_norm.")


def phase_keys(job: StudentJob) -> list[str]:
    """One hash for each phase: of runs on one cache, equal keys mean that phase and all before it do the same, update by update."""
    settings = {name: value for name, value in run_identity(job.config()).items() if name not in _IN_THE_PHASE}
    keys = [hash_json(settings)]
    for phase in phases(job.settings):
        keys.append(hash_json([keys[-1], _facts(job, phase)]))
    return keys[1:]


def _facts(job: StudentJob, phase: Phase) -> dict[str, object]:
    s = job.settings
    stretch = document_order(s, [job.documents], job.documents).stretch(phase.first_position, s.steps * s.global_batch_size)
    older = [f"blocks.{index}." for index in range(phase.active_blocks)]
    return {"blocks": phase.active_blocks, "trains": [is_trained(part, phase, s) for part in (*older, *PARTS)], "documents": stretch}


def donors(jobs: Sequence[StudentJob]) -> list[list[StudentJob]]:
    """For each run, who trains each of its first phases: runs before it in `jobs`; its own phases, and all after them, are left out."""
    first: dict[str, StudentJob] = {}
    found = []
    for job in jobs:
        keys = phase_keys(job)
        found.append([first[key] for key in keys if key in first])
        first |= {key: job for key in keys if key not in first}
    return found


def turns(jobs: Sequence[StudentJob]) -> list[list[StudentJob]]:
    """`jobs` in their order, cut so that each turn needs only phases of the turns before: the runs of a turn are independent."""
    turn: dict[str, int] = {}
    for job, shared in zip(jobs, donors(jobs), strict=True):
        turn[job.run] = max((turn[donor.run] + 1 for donor in shared if donor is not job), default=0)
    return [[job for job in jobs if turn[job.run] == number] for number in sorted(set(turn.values()))]


def adopt(job: StudentJob, donors: Sequence[StudentJob]) -> None:
    """Take the first phases of `job` from the runs that trained them, unless it has begun them itself.

    A phase whose donor has not finished it is left to be trained here, and so are those after it.
    """
    whole = list(itertools.takewhile(lambda pair: pair[1].record.phase(pair[0].index).is_dir(), zip(phases(job.settings), donors)))
    if not whole:
        return
    with only_writer(job.folder):
        if job.record.phases.exists() or job.record.checkpoints.exists():
            return
        job.record.write("shared_phases", [donor.run for _, donor in whole])
        # budgets are counted from these; before the weights, which make a phase count as done
        job.record.keep_metrics(m for phase, donor in whole for m in donor.record.metrics() if m["phase"] == phase.index)
        for phase, donor in whole:
            for snapshot in _snapshots(donor, phase):
                _link(snapshot, job.record.snapshots / snapshot.name)
            _link(donor.record.phase(phase.index), job.record.phase(phase.index))


def _snapshots(donor: StudentJob, phase: Phase) -> list[Path]:
    """Weights that were kept within a phase."""
    steps = range(phase.first_step + 1, phase.first_step + phase.steps + 1)
    return [folder for folder in donor.record.snapshots.glob("step-*") if int(folder.name.removeprefix("step-")) in steps]


def _link(source: Path, target: Path) -> None:
    """The same folder a second time: files are never changed once written, so one copy on disk is enough where the disk allows it."""
    with atomic_path(target) as temporary:
        shutil.copytree(source, temporary, copy_function=_link_file)


def _link_file(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
