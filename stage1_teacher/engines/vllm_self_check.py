"""What this vLLM really returns, against a plain transformers forward of one short document, before a shard is believed.

Its quantity (log-probabilities, of the whole vocabulary), its alignment (row t is of token t+1) and the entries that are kept: each
has been another in some version of some engine.
"""

from typing import NamedTuple

import numpy as np
import torch

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import ShardManifest, Targets
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.teacher_files import TeacherFiles

LENGTH = 16
ENTRIES = 8
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.5}
"""Nats by which the teacher's best entries and its label may differ: rounding, and nothing else."""


class Expected(NamedTuple):
    """A short document and its rows by transformers."""

    ids: np.ndarray
    document: CachedDocument


def by_transformers(files: TeacherFiles, shard: ShardManifest) -> Expected:
    """The rows of a document of random ids; the model is gone afterwards, so that vLLM has the device to itself."""
    from stage1_teacher.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(files, shard)
    length = min(LENGTH, shard.documents.max_length)
    ids = np.random.default_rng(0).integers(0, engine.vocab_size, length).astype(np.int32)
    document = engine.score([ids], _targets(engine.vocab_size))[0]
    del engine
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Expected(ids, document)


def require_equal(engine: TeacherEngine, expected: Expected, dtype: str) -> None:
    """Score the same document with vLLM.

    Raises:
        TeacherError: a row is another one than transformers gives.
    """
    found = engine.score([expected.ids], _targets(engine.vocab_size))[0]
    apart = np.abs(found.label_logprob - expected.document.label_logprob)
    for t in range(found.tokens):
        ours, theirs = (dict(zip(*document.row(t), strict=True)) for document in (found, expected.document))
        best = max(theirs, key=lambda token: theirs[token])
        apart[t] = max(apart[t], abs(ours.get(best, -np.inf) - theirs[best]))
    worst = int(np.nan_to_num(apart, nan=np.inf).argmax())
    if not apart[worst] <= TOLERANCE[dtype]:
        raise TeacherError(
            f"engine=vllm: its row {worst} of a test document is {apart[worst]:.3g} nats from transformers' "
            f"(at most {TOLERANCE[dtype]:g} for {dtype}): this vLLM returns something else; use the pinned one, or --engine transformers"
        )


def _targets(vocab_size: int) -> Targets:
    return Targets(k=min(ENTRIES, vocab_size))
