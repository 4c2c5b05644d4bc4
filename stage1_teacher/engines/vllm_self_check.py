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
from stage1_teacher.teacher_files import TeacherFiles

LENGTH = 16
ENTRIES = 8
TOLERANCE = {"float32": 2e-3, "bfloat16": 0.5}
"""Nats by which the teacher's best entries and its label may differ: rounding, and nothing else."""


class Expected(NamedTuple):
    """A short document [T], and its rows by transformers for targets that show enough of them."""

    ids: np.ndarray
    targets: Targets
    document: CachedDocument


def by_transformers(files: TeacherFiles, shard: ShardManifest) -> Expected:
    """The rows of a document of random ids; the model is gone afterwards, so that vLLM has the device to itself.

    A teacher that is spread over several devices may not fit on one: it is asked on the CPU.
    """
    from stage1_teacher.engines.transformers_engine import TransformersEngine

    engine = TransformersEngine(files, shard, "cpu" if shard.cache.tensor_parallel > 1 else None)
    length = min(LENGTH, shard.documents.max_length)
    ids = np.random.default_rng(0).integers(0, engine.vocab_size, length).astype(np.int32)
    targets = Targets(k=min(ENTRIES, engine.vocab_size))
    (document,) = engine.score([ids], targets)
    del engine
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Expected(ids, targets, document)


def require_equal(found: CachedDocument, expected: Expected, dtype: str) -> None:
    """Hold what vLLM gives for the same document against it.

    Raises:
        TeacherError: a row is another one than transformers gives.
    """
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
