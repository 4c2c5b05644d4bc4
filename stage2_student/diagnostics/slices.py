"""Which validation documents are looked at, and how much of each: the paper's diagnostic batch, and the first documents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

BATCH_ROWS, BATCH_LENGTH = 2, 2048


@dataclass(frozen=True)
class Slice:
    """Documents of the validation split, by index, and the input tokens that are kept of each; `about` says how they were chosen."""

    documents: tuple[int, ...]
    lengths: tuple[int, ...]
    about: str

    def as_json(self) -> dict[str, Any]:
        tokens = sum(self.lengths)
        return {
            "about": self.about,
            "documents": list(self.documents),
            "input_tokens": tokens,
            "target_tokens": tokens - len(self.lengths),
            "longest": max(self.lengths, default=0),
        }


def diagnostic_batch(input_tokens: np.ndarray, seed: int) -> Slice:
    """2 x 2048 tokens drawn by `seed` (paper, 'Block removal'), smaller where the split is.

    Documents are not packed, so those of 2048 tokens or more come first, cut to 2048; where there are too few, the longest
    of the others follow, whole, until there are as many tokens.
    """
    wanted = BATCH_ROWS * BATCH_LENGTH
    drawn = np.random.Generator(np.random.PCG64(seed)).permutation(len(input_tokens))
    longest_first = sorted(drawn.tolist(), key=lambda index: -min(int(input_tokens[index]), BATCH_LENGTH))
    chosen: list[tuple[int, int]] = []
    for index in longest_first:
        length = min(int(input_tokens[index]), BATCH_LENGTH, wanted - sum(kept for _, kept in chosen))
        if length > 1:  # a document of one token has no target
            chosen.append((index, length))
    found = sum(length for _, length in chosen)
    is_papers = [length for _, length in chosen] == [BATCH_LENGTH] * BATCH_ROWS
    about = f"{BATCH_ROWS} x {BATCH_LENGTH} tokens of validation documents, drawn with seed {seed}"
    if not is_papers:
        about += f"; the split's documents are shorter: {len(chosen)} rows of {found} tokens in all, the longest documents first"
    return Slice(tuple(index for index, _ in chosen), tuple(length for _, length in chosen), about)


def first_documents(input_tokens: np.ndarray, count: int) -> Slice:
    """The first `count` documents of the split, whole."""
    chosen = [index for index in range(min(count, len(input_tokens))) if input_tokens[index] > 1]
    about = f"the first {len(chosen)} of {len(input_tokens)} validation documents"
    return Slice(tuple(chosen), tuple(int(input_tokens[index]) for index in chosen), about)
