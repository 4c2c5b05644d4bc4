"""What came out of a run: its endpoint values and its measured budgets, never the best checkpoint."""

from typing import Any

import numpy as np

from pipeline.contract.data_order import DocumentOrder
from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.run_record import Metrics
from stage2_student.curriculum import Phase
from stage2_student.evaluate import teacher_ce
from stage2_student.guard_rails import guard_counts
from stage2_student.job import StudentJob
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.parameters import count_parameters


def summarize(job: StudentJob, documents: LogitCache, validation: LogitCache, order: DocumentOrder, phases: list[Phase]) -> dict[str, Any]:
    """The result record: CE, KL, KD in nats a target token, PPL, and tokens as the run counted them."""
    metrics = list(job.record.metrics())
    endpoints = [_endpoint(metrics, phase, job) for phase in phases]
    seen = [m for m in metrics if m["kind"] == "train"]
    start = next(m for m in metrics if m["kind"] == "val" and m["step"] == 0)
    return {
        "run": job.run,
        "norm": job.settings.norm,
        "curriculum": job.settings.curriculum,
        "seed": job.settings.seed,
        "phases": endpoints,
        "val_ce_start": start["val/ce"],
        **{key: endpoints[-1][key] for key in ("val_ce", "val_kl", "val_kd", "val_ppl")},
        "val_tokens": start["val/tokens"],
        "teacher_ce": teacher_ce(validation),
        "kl_kind": job.settings.tail,
        "tokens_total": sum(m["tokens"] for m in seen),
        "tokens_unique": unique_tokens(job, documents, order, phases),
        "active_layer_tokens": sum(m["tokens"] * m["growth/active_layers"] for m in seen),
        "optimizer_steps": len(seen),
        "shared_phases": job.record.read("shared_phases") or [],
        "guards": guard_counts(metrics),
        "starts": len(job.record.read("provenance")),
        "parameters": count_parameters(BlockStackConfig.from_pretrained(job.record.phase(phases[-1].index)))["total"],
    }


def _endpoint(metrics: list[Metrics], phase: Phase, job: StudentJob) -> dict[str, Any]:
    end = next(m for m in metrics if m["kind"] == "val" and m["phase"] == phase.index and m["phase_step"] == phase.steps)
    return {
        "index": phase.index,
        "active_blocks": phase.active_blocks,
        "active_layers": phase.active_layers,
        "norm": job.settings.norm,
        "steps": phase.steps,
        "val_ce": end["val/ce"],
        "val_kl": end["val/kl"],
        "val_kd": end["val/kd"],
        "val_ppl": end["val/ppl"],
    }


def unique_tokens(job: StudentJob, documents: LogitCache, order: DocumentOrder, phases: list[Phase]) -> int:
    """Target tokens of the distinct documents that any phase draws."""
    count = job.settings.steps * job.settings.global_batch_size
    drawn = np.unique(np.concatenate([order.drawn(phase.first_position, count) for phase in phases]))
    return int(documents.input_tokens[drawn].sum(dtype=np.int64)) - len(drawn)
