"""`vocabulary.arrow`: counted on the documents' tokens, and for clusters fitted to a teacher's rows, once for a cache.

Both look at the first documents of the source, however many are captured: so an extended cache has the vocabulary that a
capture of the whole would have made. Whichever worker comes first makes it; the others wait.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache.codec import needs_vocabulary
from pipeline.contract.logit_cache.index import VOCABULARY, VOCABULARY_FILE, FileRecord, recorded_files
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import ShardManifest
from pipeline.contract.sealed import write_sealed
from pipeline.contract.store import Store
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.leases import Leases
from stage1_teacher.tokenization import DocumentTokenizer

CALIBRATION_SHARE = 0.1  # of a cache's rows, at most, are scored once more to calibrate where that is left to "auto"
DOCUMENTS_AT_ONCE = 64
WAIT_SECONDS = 0.5


def token_counts(source: DocumentSource, tokenizer: DocumentTokenizer, tokens: int) -> np.ndarray:
    """[tokenizer's V] how often each id comes in the first documents that hold `tokens` tokens, or in all of a smaller source."""
    counts, seen = np.zeros(tokenizer.size, dtype=np.int64), 0
    for ids in _first_documents(source, tokenizer):
        np.add.at(counts, ids, 1)
        seen += len(ids)
        if seen >= tokens:
            break
    return counts


def choose_codec(shard: ShardManifest, source: DocumentSource, tokenizer: DocumentTokenizer) -> str:
    """What "auto" means: clusters where the training range is large enough to pay for calibration and for their table."""
    rows, wanted = 0, shard.cache.calibration_rows / CALIBRATION_SHARE
    for ids in islice(_first_documents(source, tokenizer), shard.documents.limit):
        rows += len(ids) - 1
        if rows >= wanted:
            return "clusters"
    return "streams" if shard.targets.mode == "sampled" else "ranks"


def ensure_vocabulary(cache: Store, leases: Leases, codec: str, make: Callable[[], Vocabulary]) -> Vocabulary | None:
    """The cache's vocabulary, made by this worker if no other is about to."""
    while needs_vocabulary(codec):
        found = recorded_vocabulary(cache)
        if found and not found.problem(cache):
            return Vocabulary.from_bytes(cache.read_bytes(found.name), f"{cache}/{found.name}")
        if leases.take("vocabulary"):
            try:
                publish_vocabulary(cache, make())
            finally:
                leases.drop("vocabulary")
        else:
            time.sleep(WAIT_SECONDS)
    return None


def publish_vocabulary(cache: Store, vocabulary: Vocabulary) -> None:
    """The file, then the record that makes it count.

    Raises:
        CacheError: there is a record already, of another file: the shards were coded with that one.
    """
    earlier = recorded_vocabulary(cache)
    with cache.scratch(VOCABULARY_FILE) as temporary:
        temporary.write_bytes(vocabulary.to_bytes())
        record = FileRecord.of(temporary, VOCABULARY_FILE)
        if earlier and record != earlier:
            raise CacheError(
                f"{cache}/{VOCABULARY_FILE}: is lost, and this machine's teacher gives another one (hash {record.xxh3_128[:12]}, "
                f"was {earlier.xxh3_128[:12]}): bring back a copy of it, or capture the cache again under another name"
            )
        cache.put(temporary, VOCABULARY_FILE)
    write_sealed(cache, VOCABULARY, record.model_dump())


def recorded_vocabulary(cache: Store) -> FileRecord | None:
    """The record of the file, None where there is none."""
    return next(iter(recorded_files(cache, VOCABULARY)), None)


def make_vocabulary(shard: ShardManifest, codec: str, inputs: "CalibrationInputs") -> Vocabulary:
    """By token frequency; with clusters by what the teacher keeps of the first documents' rows."""
    counts = np.zeros(inputs.vocab_size, dtype=np.int64)
    seen = token_counts(inputs.source, inputs.tokenizer, shard.cache.vocabulary_tokens)[: inputs.vocab_size]
    counts[: len(seen)] = seen
    if codec != "clusters":
        return Vocabulary.by_frequency(counts)
    from pipeline.contract.logit_cache.clusters import cluster_vocabulary

    rows = list(_calibration_rows(shard, inputs))
    return cluster_vocabulary(np.concatenate([row.ids for row in rows]), np.concatenate([row.counts for row in rows]), counts)


@dataclass(frozen=True)
class CalibrationInputs:
    """What a vocabulary is made from; the teacher is loaded when it is asked for."""

    source: DocumentSource
    tokenizer: DocumentTokenizer
    vocab_size: int
    engine: Callable[[], TeacherEngine]


def _calibration_rows(shard: ShardManifest, inputs: CalibrationInputs) -> Iterator[CachedDocument]:
    rows, documents = 0, _first_documents(inputs.source, inputs.tokenizer)
    while rows < shard.cache.calibration_rows and (batch := list(islice(documents, DOCUMENTS_AT_ONCE))):
        for document in inputs.engine().score(batch):
            yield document
            rows += document.tokens


def _first_documents(source: DocumentSource, tokenizer: DocumentTokenizer) -> Iterator[np.ndarray]:
    texts = (raw.text for raw in source if raw.text is not None)
    while batch := list(islice(texts, DOCUMENTS_AT_ONCE)):
        yield from tokenizer.encode(batch)
