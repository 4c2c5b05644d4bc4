"""Documents through a codec and a file, and vocabularies to do it with."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa

from pipeline.contract.logit_cache.codec import Codec, make_codec
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets

CODECS = ("raw", "plain", "ranks", "streams", "clusters")
CLUSTERS, HEAD = 5, 4096


@cache
def vocabulary(size: int, clusters: bool = False) -> Vocabulary:
    """Any permutation of `size` ids; with clusters their heads too."""
    rng = np.random.default_rng(size)
    order = rng.permutation(size).astype(np.int32)
    heads = [rng.permutation(size)[:HEAD] for _ in range(CLUSTERS)] if clusters else np.zeros((1, 0))
    return Vocabulary(order, np.array(heads, dtype=np.int32))


def codec(name: str, targets: Targets, size: int = 151_936) -> Codec:
    return make_codec(name, targets, vocabulary(size, name == "clusters"))


def file_of(made: Codec, batches: Sequence[pa.RecordBatch]) -> pa.Buffer:
    """An IPC file as the writer writes it."""
    compression = None if made.zstd_level is None else pa.Codec("zstd", compression_level=made.zstd_level)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, made.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue()


def through_file(made: Codec, documents: list[CachedDocument], first: int = 0) -> Columns:
    """What a reader has: one batch of a file, valid to the last offset, with every document in its place."""
    batch = made.encode(documents, first)
    batch.validate(full=True)
    (back,) = pa.ipc.open_file(file_of(made, [batch])).read_all().to_batches()
    back.validate(full=True)
    assert back.schema == made.schema and back.equals(batch)
    assert back["document"].to_pylist() == list(range(first, first + len(documents)))
    assert back["input_tokens"].to_pylist() == [len(document.token_ids) for document in documents]
    return Columns(back)
