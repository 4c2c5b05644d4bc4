"""What a run would do, counted and not trained: `pipeline train --dry-run` and `pipeline plan`."""

from typing import Any

from pipeline.contract.logit_cache import LogitCache
from stage2_student.curriculum import check_documents, phases
from stage2_student.data_order import DocumentOrder
from stage2_student.engine import resolve_precision
from stage2_student.job import StudentJob
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.parameters import count_parameters
from stage2_student.schedule import learning_rate, warmup_steps


def training_plan(job: StudentJob) -> dict[str, Any]:
    """Phases, learning rates and budgets of `job`, in target tokens.

    Raises:
        RunError, CacheError: what training itself would refuse.
    """
    settings, plan = job.settings, phases(job.settings)
    documents = LogitCache.open(job.cache, "train")
    check_documents(settings, job.documents, str(job.cache))
    order = DocumentOrder([shard.documents for shard in documents.record.shards], job.documents, settings.seed, settings.order)
    counts = [[int(documents.input_tokens[i]) - 1 for i in order.at(p.first_position, p.steps * settings.global_batch_size)] for p in plan]
    drawn = {i for p in plan for i in order.at(p.first_position, min(p.steps * settings.global_batch_size, job.documents))}
    return {
        "run": job.run,
        "cache": str(job.cache),
        "documents": job.documents,
        "phases": [_phase(p, settings) for p in plan],
        "tokens_total": sum(map(sum, counts)),
        "tokens_unique": sum(int(documents.input_tokens[i]) - 1 for i in drawn),
        "active_layer_tokens": sum(sum(tokens) * p.active_layers for tokens, p in zip(counts, plan, strict=True)),
        "parameters": _parameters(job),
        "precision": str(resolve_precision(settings)).removeprefix("torch."),
        "zero": settings.zero,
        "notes": _notes(job),
    }


def _phase(phase: Any, settings: Any) -> dict[str, Any]:
    return {
        "index": phase.index,
        "active_blocks": phase.active_blocks,
        "active_layers": phase.active_layers,
        "norm": settings.norm,
        "steps": phase.steps,
        "trainable": phase.trainable,
        "warmup_steps": warmup_steps(settings),
        "learning_rate_peak": max(learning_rate(step, settings) for step in range(min(settings.steps, warmup_steps(settings) + 1))),
        "first_document": phase.first_position,
    }


def _parameters(job: StudentJob) -> int:
    from transformers import AutoConfig

    shape = job.settings.model
    config = BlockStackConfig.from_teacher(
        AutoConfig.from_pretrained(job.cache / "teacher", local_files_only=True),
        blocks=shape.blocks,
        layers_per_block=shape.layers_per_block,
        norm=job.settings.norm,
        active_blocks=shape.blocks,
        initializer_range=shape.initializer_range,
        seed=job.settings.seed,
    )
    return int(count_parameters(config)["total"])


def _notes(job: StudentJob) -> list[str]:
    """Said before training: a rewind that changes nothing."""
    settings = job.settings
    a_phase = settings.steps * settings.global_batch_size
    if settings.data == "rewind" and settings.order == "fixed" and a_phase % job.documents == 0:
        return ["data=rewind equals data=continue here: a phase is a whole number of passes in a fixed order"]
    return []
