"""vLLM for real where it is short of something: of blocks, of memory, of a device (field cases 23, 26, 27, 28)."""

import logging
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from captures import shard
from tiny_teacher import write_teacher
from vllm_process import ENGINES, needs_vllm, transformers_score
from vllm_rows import assert_all_close, documents

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.engines import vllm_engine, vllm_start
from stage1_teacher.engines.base import ScoringError
from stage1_teacher.teacher_files import TeacherFiles

pytestmark = needs_vllm
TARGETS = [Targets(k=8), Targets(mode="sampled", c=1 / 16)]
LONG = {"documents": {"max_length": 256}}


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"), head_dim=32)


def start(folder, settings=(), /, **sections):
    """In the vllm_child: an engine of its own, with further settings of vLLM's."""
    with patched(vllm_start, "arguments", lambda *given: ARGUMENTS(*given) | dict(settings)):
        return vllm_engine.VllmEngine(TeacherFiles(folder), shard(folder, folder, **sections))


ARGUMENTS = vllm_start.arguments


@contextmanager
def patched(owner, name, value):
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def test_documents_that_were_preempted_are_whole(vllm_child, teacher):
    """Room for 10 blocks of 32 tokens, and documents that need 8 each, 16 tokens a step: they push each other out."""
    ids = documents([256, 200, 31, 256, 90, 256])
    found, preempted = vllm_child.call(score_short_of_blocks, teacher, ids)
    assert preempted >= 3
    assert_all_close(found, transformers_score(teacher, ids, TARGETS, **LONG), TARGETS)


def score_short_of_blocks(folder, ids):
    """In the vllm_child: rows, and how often vLLM's scheduler took a document's blocks away."""
    few = {"num_gpu_blocks_override": 11, "block_size": 32, "long_prefill_token_threshold": 16}
    engine = start(folder, few, **LONG)
    scheduler = engine.model.llm_engine.engine_core.engine_core.scheduler
    preempt, seen = scheduler._preempt_request, []

    def counted(request, *more, **options):
        seen.append(request.request_id)
        return preempt(request, *more, **options)

    scheduler._preempt_request = counted
    return engine.score_many(ids, TARGETS), len(seen)


def test_a_non_finite_row_names_its_document_and_spoils_no_other(vllm_child, tmp_path):
    """A token whose embedding is no number: what it leaves in blocks of vLLM's cache makes rows of other documents none either."""
    folder, bad = with_nan_embedding(tmp_path)
    ids = documents([24, 20, 24, 7, 11, 24])
    clean = [np.where(each == bad, 0, each).astype(np.int32) for each in ids]
    spoilt = [each.copy() for each in clean]
    spoilt[4][5] = bad
    refusal, found = vllm_child.call(score_spoilt_then_clean, folder, spoilt, clean)
    assert refusal == "document 4: the teacher gives a non-finite value; check its weights and dtype"
    assert_all_close(found, transformers_score(folder, clean, TARGETS), TARGETS)


def score_spoilt_then_clean(folder, spoilt, clean):
    """In the child: why the first are refused, and the rows of the others by the same engine."""
    engine = start(folder, {"max_num_seqs": 1})  # one after the other, each in the blocks of the one before
    with pytest.raises(ScoringError) as caught:
        engine.score_many(spoilt, TARGETS)
    found = engine.score_many(clean, TARGETS)
    end(engine)
    return str(caught.value), found


def end(engine):
    """In the child: with an engine goes the process group that all engines of a process share."""
    engine._stop()
    ENGINES.clear()


def with_nan_embedding(folder):
    """A teacher, and the token of it; not one of the self-check's document, which would refuse the teacher as a whole."""
    from safetensors.torch import load_file, save_file

    write_teacher(folder, head_dim=32)
    bad = 127
    assert bad not in np.random.default_rng(0).integers(0, 128, 16)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][bad] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder, bad


def test_two_devices_that_share_a_teacher_give_its_rows(vllm_child, teacher):
    """Processes stand in for devices; the head is spread over them, and every document is cut into chunks and steps."""
    ids, sections = documents([24, 7, 1, 24, 13]), {"cache": {"tensor_parallel": 2, "rows_per_chunk": 5}}
    assert_all_close(vllm_child.call(score_and_stop, teacher, ids, **sections), transformers_score(teacher, ids, TARGETS), TARGETS)


def score_and_stop(folder, ids, /, **sections):
    engine = start(folder, **sections)
    found = engine.score_many(ids, TARGETS)
    end(engine)
    return found


def test_out_of_memory_the_batch_is_scored_again_in_halves(vllm_child, teacher):
    """A device with room for the head of 10 rows; the manifest wants 16 a chunk, and 64 tokens a batch, in another order too."""
    ids = documents([24, 3, 24, 13, 24, 1, 8])
    found, shuffled, layout, said = vllm_child.call(score_short_of_memory, teacher, ids, 10)
    assert (layout.tokens_per_batch, layout.rows_per_chunk) == (32, 8)
    assert said == ["engine=vllm: CUDA out of memory. Tried to allocate 16 rows; again with 32 tokens at once"]
    wanted = transformers_score(teacher, ids, TARGETS)
    assert_all_close(found, wanted, TARGETS)
    assert_all_close(shuffled, [rows[::-1] for rows in wanted], TARGETS)


def test_out_of_memory_to_the_last_is_said_in_a_line(vllm_child, teacher):
    with pytest.raises(TeacherError, match=r"^cache.tokens_per_batch=64: out of memory, with 4 too; free the device, or .*$"):
        vllm_child.call(score_short_of_memory, teacher, documents([24]), 0)


def score_short_of_memory(folder, ids, room):
    """In the child: rows in order and in reverse, what the engine takes at once afterwards, and what it said.

    The head's product fails as it does on a GPU; on a CPU the test's logits are too small for a limit to be real.
    """
    from stage1_teacher.engines import vllm_models

    engine, said = start(folder), []
    pooler, handler = vllm_models.KeptEntriesPooler, Said(said)
    logits = pooler._logits

    def short(self, hidden):
        if len(hidden) > room:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {len(hidden)} rows\nfurther lines")
        return logits(self, hidden)

    vllm_engine.log.addHandler(handler)
    try:
        with patched(pooler, "_logits", short):
            return engine.score_many(ids, TARGETS), engine.score_many(ids[::-1], TARGETS), engine.layout, said
    finally:
        vllm_engine.log.removeHandler(handler)
        end(engine)


class Said(logging.Handler):
    """Messages of a logger, in a list."""

    def __init__(self, said: list[str]) -> None:
        super().__init__()
        self.said = said

    def emit(self, record):
        self.said.append(record.getMessage())
