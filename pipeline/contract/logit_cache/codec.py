"""The codecs of a cache, by name: between documents' arrays and Arrow record batches.

    raw        int32 ids, float16 logprobs, uncompressed: a memory map reads it without a copy
    plain      the same, zstd
    ranks      ids as gaps between frequency ranks, probabilities as one byte, zstd
    streams    for samples: ranks, with certain and drawn entries apart and weights as whole multiples of c
    clusters   ranks or streams, with the best of 64 orders of the vocabulary for each row

Whatever the codec, the mass of a row's entries is restored exactly: they are rescaled to one minus the recorded tail.
"""

from typing import Protocol

import numpy as np
import pyarrow as pa

from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.logit_cache.vocabulary import Vocabulary
from pipeline.contract.manifest.shard import Targets


class Codec(Protocol):
    """One way to store rows. A document is stored whole, as one row of a batch."""

    name: str
    targets: Targets
    zstd_level: int | None
    schema: pa.Schema

    def encode(self, documents: list[CachedDocument], first_index: int) -> pa.RecordBatch:
        """Documents from `first_index` of their split on."""
        ...

    def counts(self, columns: Columns) -> np.ndarray:
        """[R] uint8, entries of each row of a batch, document after document, as far as the codec kept them."""
        ...

    def fill(
        self, columns: Columns, documents: np.ndarray, temperature: float, ids: np.ndarray, weights: np.ndarray, places: np.ndarray
    ) -> None:
        """Write the entries of a batch's `documents` [D] into the first slots of the rows of `ids` and `weights`, and no other.

        `ids` [B, T, K] are int32, `weights` [B, T, K] float32; document n goes to `places[n]` of B.
        """
        ...


def make_codec(name: str, targets: Targets, vocabulary: Vocabulary | None) -> Codec:
    """The codec `name` (not "auto") for a shard's targets; all but raw and plain need the cache's vocabulary."""
    if name in ("raw", "plain"):
        from pipeline.contract.logit_cache.plain import PlainCodec

        return PlainCodec(name, targets)
    from pipeline.contract.logit_cache.compact import CompactCodec

    assert vocabulary is not None
    return CompactCodec(name, targets, vocabulary)


def needs_vocabulary(name: str) -> bool:
    return name not in ("raw", "plain")
