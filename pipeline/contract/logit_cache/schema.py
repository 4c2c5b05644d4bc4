"""What a row of the cache means, said once.

A document of T tokens (separator included) has T-1 rows. Row t is the teacher's distribution over token t+1 given
the tokens up to and including t; its label is `token_ids[t + 1]`. The row after the last token is not stored.

    token_ids   [ The, cat, sat, <|endoftext|> ]                      T = 4
    row 0       distribution after "The",          label "cat"
    row 1       distribution after "The cat",      label "sat"
    row 2       distribution after "The cat sat",  label <|endoftext|>   the separator is learnt too

`tokens` always counts target tokens (T-1 a document); `input_tokens` counts T. Entries of a row are sorted by
falling probability.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

FORMAT_VERSION = 0
"""Version 0: int32 ids, float16 log-probabilities, float32 label and tail log-probabilities."""

DOCUMENT_SCHEMA = pa.schema(
    [
        pa.field("document", pa.int64(), nullable=False),  # index in its split
        pa.field("input_tokens", pa.int32(), nullable=False),  # T
        pa.field("token_ids", pa.large_list(pa.int32()), nullable=False),  # [T]
        pa.field("counts", pa.large_list(pa.uint8()), nullable=False),  # [T-1] entries of each row
        pa.field("tail_logprob", pa.large_list(pa.float32()), nullable=False),  # [T-1] log of the mass outside the entries
        pa.field("label_logprob", pa.large_list(pa.float32()), nullable=False),  # [T-1]
        pa.field("ids", pa.large_list(pa.int32()), nullable=False),  # [N], N = sum of counts
        pa.field("logprobs", pa.large_list(pa.float16()), nullable=False),  # [N]
    ]
)


@dataclass(frozen=True)
class CachedDocument:
    """One document and the teacher's view of it. T tokens, T-1 rows, N entries over all rows.

    Attributes:
        token_ids: [T] int32, separator included unless the document was truncated.
        counts: [T-1] uint8, entries of each row.
        tail_logprob: [T-1] float32, log-sum-exp over every id that is not kept (-inf when all are).
        label_logprob: [T-1] float32, the teacher's logprob of token t+1, kept or not.
        ids: [N] int32, row after row.
        logprobs: [N] float32, normalised over the whole vocabulary.
    """

    token_ids: np.ndarray
    counts: np.ndarray
    tail_logprob: np.ndarray
    label_logprob: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray

    @property
    def tokens(self) -> int:
        """Target tokens, T-1."""
        return len(self.token_ids) - 1

    @property
    def tail_mass(self) -> np.ndarray:
        """[T-1] float32, the mass outside the kept entries."""
        return np.exp(self.tail_logprob)

    def row(self, t: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and logprobs of row t, most probable first."""
        start = int(self.counts[:t].sum(dtype=np.int64))
        stop = start + int(self.counts[t])
        return self.ids[start:stop], self.logprobs[start:stop]
