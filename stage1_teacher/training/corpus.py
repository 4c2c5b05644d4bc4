"""What a small teacher is trained and evaluated on: the shard's own splits. A validation document is in no batch and in no merge."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeline.contract.errors import DocumentError
from pipeline.contract.logit_cache.index import Split
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.shard_plan import ShardPlan, ShardUnit
from stage1_teacher.tokenization import DocumentTokenizer


@dataclass(frozen=True)
class Corpus:
    """Token ids of each document, [T] int32 as a capture would see them. All is in memory, at 4 bytes a token."""

    train: list[np.ndarray]
    validation: list[np.ndarray]


def training_texts(shard: ShardManifest, source: DocumentSource) -> Iterator[str]:
    """The training documents, in order; in bounded memory."""
    for unit in _units(shard, source, ["train"]):
        yield from unit.texts


def read_corpus(shard: ShardManifest, source: DocumentSource, tokenizer: DocumentTokenizer) -> Corpus:
    """Read and encode both splits.

    Raises:
        DocumentError: one of them has nothing to predict.
    """
    corpus = Corpus([], [])
    for unit in _units(shard, source, ["train", "validation"]):
        getattr(corpus, unit.split).extend(tokenizer.encode(unit.texts))
    for split in ("train", "validation"):
        if not target_tokens(getattr(corpus, split)):
            raise DocumentError(f"documents: the {split} documents have no token to predict; give more documents, or longer ones")
    return corpus


def target_tokens(documents: list[np.ndarray]) -> int:
    """T-1 of each document of T tokens."""
    return sum(len(ids) - 1 for ids in documents)


def _units(shard: ShardManifest, source: DocumentSource, splits: list[Split]) -> Iterator[ShardUnit]:
    return iter(ShardPlan(source, shard.documents, shard.cache.documents_per_shard, splits))
