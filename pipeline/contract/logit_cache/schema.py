"""What a row of the cache means, said once.

A document of T tokens (separator included) has T-1 rows. Row t is the teacher's distribution over token t+1 given
the tokens up to and including t; its label is `token_ids[t + 1]`. The row after the last token is not stored.

    token_ids   [ The, cat, sat, <|endoftext|> ]                      T = 4
    row 0       distribution after "The",          label "cat"
    row 1       distribution after "The cat",      label "sat"
    row 2       distribution after "The cat sat",  label <|endoftext|>   the separator is learnt too

`tokens` always counts target tokens (T-1 a document); `input_tokens` counts T.

A row's entries come in three ways (`targets.mode`):

    topk        the k largest; the rest of the mass is one number, the tail's
    threshold   those of probability c or more, k at most; tail as above
    sampled     those of probability c or more, and a sample of the rest, each drawn entry with weight c: the weights of a
                row sum to 1 in expectation, so that nothing is left outside
"""

from dataclasses import dataclass, field

import numpy as np

FORMAT_VERSION = 1
"""Version 1: the codecs of `codec.py`, a vocabulary file, sealed records. FORMAT.md beside this file describes it."""


@dataclass(frozen=True)
class CachedDocument:
    """One document and the teacher's view of it. T tokens, T-1 rows, N entries over all rows.

    A row's entries are in the order of the codec that stored them, most probable first as an engine gives them;
    drawn ones come after the others.

    Attributes:
        token_ids: [T] int32, separator included unless the document was truncated.
        counts: [T-1] uint8, entries of each row.
        tail_logprob: [T-1] float32, log-sum-exp over every id that was not kept for certain (-inf when all were; and in a
            sample read from a cache, whose entries stand for the tail too).
        label_logprob: [T-1] float32, the teacher's logprob of token t+1, kept or not.
        ids: [N] int32, row after row.
        logprobs: [N] float32, normalised over the whole vocabulary; log of the weight for a drawn entry.
        drawn: [T-1] uint8, how many entries of a row are drawn, None outside of `sampled`.
        entropy: [T-1] float32, the teacher's entropy in nats, None where it was not captured.
        other_tails: `tail_logprob` at other captured temperatures.
        tail_square: [T-1] float64, sum of q^2 over the tail of a sample; for measuring, never stored.
    """

    token_ids: np.ndarray
    counts: np.ndarray
    tail_logprob: np.ndarray
    label_logprob: np.ndarray
    ids: np.ndarray
    logprobs: np.ndarray
    drawn: np.ndarray | None = None
    entropy: np.ndarray | None = None
    other_tails: dict[float, np.ndarray] = field(default_factory=dict)
    tail_square: np.ndarray | None = None

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
        falling = np.argsort(-self.logprobs[start:stop], kind="stable")
        return self.ids[start:stop][falling], self.logprobs[start:stop][falling]
