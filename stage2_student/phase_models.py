"""Where a phase's weights come from and where they go: the teacher's interface first, then phase folder to phase folder."""

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoConfig

from pipeline.contract.atomic_io import atomic_path
from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.logit_cache.teacher import local_teacher
from stage2_student.curriculum import Phase
from stage2_student.engine import StudentEngine
from stage2_student.job import StudentJob
from stage2_student.model.config import BlockStackConfig
from stage2_student.model.growth import apply_event
from stage2_student.model.initialization import build_student
from stage2_student.model.student import BlockStackForCausalLM


def phase_model(job: StudentJob, phase: Phase) -> BlockStackForCausalLM:
    """The float32 student at the start of `phase`, before any update.

    Raises:
        CacheError: the cache's teacher folder is not whole.
    """
    if phase.index == 0:
        return first_model(job, phase.active_blocks)
    before = BlockStackForCausalLM.from_pretrained(job.record.phase(phase.index - 1), dtype=torch.float32)
    if not phase.appends:
        return before
    event = {"type": "append", "block": phase.active_blocks - 1, "start": job.settings.model.new_block}
    state, config = apply_event(before.state_dict(), before.config, event)
    with torch.device("meta"):
        model = BlockStackForCausalLM(config)
    model.load_state_dict(state, assign=True)
    model.rotary_emb = before.rotary_emb  # its buffers are not part of the state
    model.freeze_embedding()
    return model


def student_config(job: StudentJob, active_blocks: int) -> BlockStackConfig:
    """The config of a new student of `active_blocks` blocks on the cached teacher's sizes.

    Raises:
        CacheError: the cache's teacher folder cannot be read.
    """
    shape = job.settings.model
    with _readable(job) as folder:
        teacher_config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return BlockStackConfig.from_teacher(
        teacher_config,
        blocks=shape.blocks,
        layers_per_block=shape.layers_per_block,
        norm=job.settings.norm,
        active_blocks=active_blocks,
        initializer_range=shape.initializer_range,
        seed=job.settings.seed,
    )


def first_model(job: StudentJob, active_blocks: int) -> BlockStackForCausalLM:
    """A new student of `active_blocks` blocks with the cached teacher's embedding, head and final norm."""
    config = student_config(job, active_blocks)
    with _readable(job) as folder:
        interface = load_file(folder / "interface.safetensors")
    return build_student(config, {name: tensor.float() for name, tensor in interface.items()})


@contextmanager
def _readable(job: StudentJob) -> Iterator[Path]:
    """The cached teacher's folder on this machine."""
    try:
        yield local_teacher(job.cache, read_manifest(job.cache).teacher)
    except (OSError, ValueError, SafetensorError) as error:
        line = str(error).splitlines()[0]
        raise CacheError(
            f"{job.cache}/teacher: cannot be read ({line}); run 'pipeline cache repair --shard {job.shard}' to write it again"
        ) from None


def save_phase(job: StudentJob, phase: Phase, engine: StudentEngine, append_cost: float | None) -> None:
    """Write the student at the end of `phase`. Every rank calls it."""
    save_student(job.record.phase(phase.index), phase, engine, append_cost)


def save_student(folder: Path, phase: Phase, engine: StudentEngine, append_cost: float | None) -> None:
    """Write the float32 student as a Hugging Face folder that loads by itself. Every rank calls it."""
    state = engine.weights()
    if engine.processes.rank == 0:
        config = cast(BlockStackConfig, copy.deepcopy(engine.model.config))
        if append_cost is not None:
            config.structure[-1]["j0"] = append_cost
        with torch.device("meta"):
            model = BlockStackForCausalLM(config)
        model.load_state_dict(state, assign=True)
        with atomic_path(folder) as temporary:
            model.save_pretrained(temporary)
            (temporary / "phase.json").write_text(
                json.dumps({"phase": phase.index, "active_blocks": phase.active_blocks}) + "\n", encoding="utf-8"
            )
    engine.processes.barrier()
