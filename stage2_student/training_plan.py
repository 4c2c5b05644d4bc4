"""What a run would do, counted and not trained: `pipeline train --dry-run` and `pipeline plan`."""

from typing import Any

import numpy as np

from pipeline.contract.logit_cache import LogitCache
from stage2_student.curriculum import check_documents, document_order, phases, planned_phases
from stage2_student.engine import resolve_precision
from stage2_student.job import StudentJob
from stage2_student.model.parameters import count_parameters
from stage2_student.phase_models import student_config
from stage2_student.result import unique_tokens
from stage2_student.support import support_table


def training_plan(job: StudentJob) -> dict[str, Any]:
    """Phases, learning rates and budgets of `job`, in target tokens.

    Raises:
        RunError, CacheError: what training itself would refuse.
    """
    settings, plan, precision = job.settings, phases(job.settings), resolve_precision(job.settings)
    documents = LogitCache.open(job.cache, "train")
    check_documents(settings, job.documents, str(job.cache))
    order = document_order(settings, [shard.documents for shard in documents.record.shards], job.documents)
    size = settings.steps * settings.global_batch_size
    tokens = [int(documents.input_tokens[order.at(p.first_position, size)].sum(dtype=np.int64)) - size for p in plan]
    return {
        "run": job.run,
        "cache": str(job.cache),
        "documents": job.documents,
        "phases": [phase | {"tokens": count} for phase, count in zip(planned_phases(settings), tokens, strict=True)],
        "tokens_total": sum(tokens),
        "tokens_unique": unique_tokens(job, documents, order, plan),
        "active_layer_tokens": sum(count * p.active_layers for count, p in zip(tokens, plan, strict=True)),
        "optimizer_steps": sum(p.steps for p in plan),
        "parameters": _parameters(job),
        "precision": str(precision).removeprefix("torch."),
        "zero": settings.zero,
        "offload": settings.offload,
        "supported": support_table(),
        "notes": _notes(job),
    }


def _parameters(job: StudentJob) -> int:
    return int(count_parameters(student_config(job, job.settings.model.blocks))["total"])


def _notes(job: StudentJob) -> list[str]:
    """Said before training: a rewind that changes nothing."""
    settings = job.settings
    a_phase = settings.steps * settings.global_batch_size
    if settings.data == "rewind" and settings.order == "fixed" and len(settings.depths) > 1 and a_phase % job.documents == 0:
        return ["data=rewind equals data=continue here: a phase is a whole number of passes in a fixed order"]
    return []
