"""All diagnostics of a run: which there are, what each is made from, and the record each leaves under the run's folder.

A number that cannot be had is a text that says why, where the number would stand: no run's state ends the work of the others.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.student import StudentManifest
from pipeline.contract.run_record import Metrics, RunFolder
from stage2_student.curriculum import phases
from stage2_student.diagnostics import (
    agreement,
    attribution,
    block_removal,
    boundary_rms,
    gradient_norms,
    near_identity,
    token_loss,
    trajectories,
    transition_response,
)
from stage2_student.diagnostics.checkpoints import Checkpoint, Unreadable, checkpoints, load, unfinished
from stage2_student.diagnostics.slices import diagnostic_batch, first_documents
from stage2_student.diagnostics.subject import Subject
from stage2_student.diagnostics.token_types import TokenTypes

Record = dict[str, Any]


class FromMetrics(NamedTuple):
    """A diagnostic of what a run wrote down as it trained."""

    definition: Any
    measure: Callable[[list[Metrics], StudentManifest], Any]


class FromStudents(NamedTuple):
    """A diagnostic of each student that a run left, on the diagnostic batch or on the first validation documents."""

    definition: Any
    on_batch: bool
    measure: Callable[[Subject], Any]


FROM_METRICS = {
    "transition": FromMetrics(transition_response.DEFINITION, lambda m, s: transition_response.transition_response(m, s.steps)),
    "validation": FromMetrics(trajectories.DEFINITION, lambda m, s: trajectories.trajectories(m, len(phases(s)))),
    "gradients": FromMetrics(gradient_norms.DEFINITION, lambda m, s: gradient_norms.gradient_norms(m, len(phases(s)), s.gradient_clip)),
}
FROM_STUDENTS = {
    "boundary": FromStudents(boundary_rms.DEFINITION, True, lambda s: boundary_rms.boundary_rms(s.batch, s.input_types(s.batch))),
    "removal": FromStudents(block_removal.DEFINITION, True, lambda s: block_removal.block_removal(s.batch, s.without)),
    "near_identity": FromStudents(near_identity.DEFINITION, True, lambda s: near_identity.near_identity(s.batch, s.input_types(s.batch))),
    "token_types": FromStudents(attribution.DEFINITION, False, lambda s: attribution.attribution(s.documents, s.input_types(s.documents))),
    "token_loss": FromStudents(
        token_loss.DEFINITION,
        False,
        lambda s: token_loss.token_loss(s.documents, s.input_types(s.documents), s.label_types(s.documents)),
    ),
    "agreement": FromStudents(agreement.DEFINITION, False, lambda s: agreement.agreement(s.documents)),
}
NAMES = (*FROM_STUDENTS, *FROM_METRICS)


def diagnose_metrics(run: RunFolder, settings: StudentManifest, names: Collection[str]) -> dict[str, Record]:
    """Write and return the records that need no student and no cache."""
    metrics, remark = _metrics(run)
    records = {}
    for name in (name for name in FROM_METRICS if name in names):
        found = FROM_METRICS[name].measure(metrics, settings)
        records[name] = _header(run, name, FROM_METRICS[name].definition) | ({"remark": remark} if remark else {}) | {"found": found}
    return _written(run, records)


def diagnose_students(
    run: RunFolder,
    settings: StudentManifest,
    validation: LogitCache,
    names: Collection[str],
    documents: int,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Record]:
    """Write and return the records of every student that `run` left, on the batch of its seed and the first `documents`.

    Raises:
        CacheError: the validation split cannot be read.
    """
    chosen = {name: FROM_STUDENTS[name] for name in FROM_STUDENTS if name in names}
    slices = {True: diagnostic_batch(validation.input_tokens, settings.seed), False: first_documents(validation.input_tokens, documents)}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    types = _token_types(validation)
    records: dict[str, Record] = {
        name: _header(run, name, each.definition)
        | {"on": slices[each.on_batch].as_json(), "precision": "float32", "device": device.type, "checkpoints": []}
        for name, each in chosen.items()
    }
    for checkpoint in checkpoints(run, settings) if chosen else []:
        say(f"{name_of(run)}: {checkpoint.folder.name}")
        look = partial(Subject, validation=validation, settings=settings, types=types, batch=slices[True], documents=slices[False])
        for name, found in _measured(checkpoint, device, look, chosen).items():
            records[name]["checkpoints"].append(checkpoint.as_json() | {"found": found})
    return _written(run, records)


def _token_types(validation: LogitCache) -> TokenTypes:
    try:
        tokenizer = Tokenizer.from_str(validation.store.read_bytes("teacher/tokenizer.json").decode())
    except Exception as error:  # tokenizers raises no narrower kind
        raise CacheError(
            f"{validation.store}/teacher/tokenizer.json: cannot be read ({(str(error) or type(error).__name__).splitlines()[0]}); "
            f"run 'pipeline cache repair --shard {validation.store.name}' to write it again"
        ) from None
    return TokenTypes(tokenizer, validation.manifest.separator_id)


def _measured(
    checkpoint: Checkpoint, device: torch.device, look: Callable[..., Subject], chosen: dict[str, FromStudents]
) -> dict[str, Any]:
    """What each diagnostic finds in a checkpoint's student, or why there is none. The student's memory is free when this returns."""
    try:
        subject = look(load(checkpoint, device))
    except Unreadable as reason:
        return dict.fromkeys(chosen, str(reason))
    return {name: each.measure(subject) for name, each in chosen.items()}


def name_of(run: RunFolder) -> str:
    """As its config says."""
    return str((run.read("config") or {}).get("run", run.path.name))


def _metrics(run: RunFolder) -> tuple[list[Metrics], str]:
    """What can be read of metrics.jsonl, and what is wrong with the rest."""
    found: list[Metrics] = []
    try:
        found.extend(run.metrics())
    except ValueError:
        return found, "metrics.jsonl has a line that is not JSON; what follows it is not in these numbers"
    return found, "" if found else "metrics.jsonl is empty or not there"


def _header(run: RunFolder, name: str, definition: Any) -> Record:
    state = unfinished(run)
    return {"diagnostic": name, "run": name_of(run), "definition": definition} | ({"unfinished": state} if state else {})


def _written(run: RunFolder, records: dict[str, Record]) -> dict[str, Record]:
    for name, record in records.items():
        run.write(f"diagnostics/{name}", record)
    return records
