"""What a block is worth: validation CE without it, and how far it turns the stream (paper, table 4 and figure A2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.diagnostics.values import mean_with_errors, number

DEFINITION = (
    "delta_ce = CE without the block - CE of the whole student, nats a target token, on the same tokens; its standard errors are those of "
    "the paired difference, over tokens (standard_error) and over documents, whose tokens are not independent "
    "(standard_error_documents; with few documents itself uncertain). A bypassed pre-norm block takes its norms with it; a bypassed "
    "post-norm block takes the two norms of each of its layers, and the entry norm stays. angular_distance = mean over tokens of "
    "arccos(cos(stream before, stream after)) / pi."
)


def block_removal(whole: TokenTable, without: Sequence[TokenTable]) -> dict[str, Any]:
    """`without` holds, for each block, a pass without it over the same tokens."""
    ce = whole.ce[whole.has_label]
    return {
        "ce": number(ce.mean()) if len(ce) else "no tokens",
        "target_tokens": len(ce),
        "blocks": [_block(whole, index, table) for index, table in enumerate(without)],
    }


def _block(whole: TokenTable, index: int, without: TokenTable) -> dict[str, Any]:
    assert np.array_equal(whole.document, without.document) and np.array_equal(whole.position, without.position)
    labelled = whole.has_label
    difference = mean_with_errors((without.ce - whole.ce)[labelled], whole.document[labelled])
    return {
        "block": index,
        "delta_ce": difference["mean"],
        "standard_error": difference["standard_error"],
        "standard_error_documents": difference["standard_error_documents"],
        "documents": difference["documents"],
        "angular_distance": number(whole.angle[:, index].mean()) if len(whole) else "no tokens",
    }
