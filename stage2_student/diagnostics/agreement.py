"""How far the student is the teacher: the same best guess, and the divergence by place in the document."""

from typing import Any

import numpy as np

from stage2_student.diagnostics.token_table import AGREES, UNDECIDED, TokenTable
from stage2_student.diagnostics.values import mean_with_errors, number

DEFINITION = (
    "top1_agreement = share of target tokens where the student's most probable token is the teacher's. Rows in which the teacher's largest "
    "entries are equal (rounded by the cache's codec, or drawn with equal weight) have no best and are left out: undecided. KL in nats a "
    "target token, of the run's tail mode at its temperature (of a bucket it is a lower bound). A target's position is that of its input."
)


def agreement(table: TokenTable) -> dict[str, Any]:
    """Over all target tokens, and in buckets of positions [0, 1), [1, 2), [2, 4), [4, 8), ..."""
    scored = table.rows(np.nonzero(table.has_label)[0])
    starts = [0, *(2**power for power in range(int(scored.position.max(initial=0)).bit_length()))]
    ends = [*starts[1:], 2 * max(1, starts[-1])]
    within = [np.nonzero((scored.position >= start) & (scored.position < end))[0] for start, end in zip(starts, ends, strict=True)]
    return {
        **_agreement(scored, np.arange(len(scored))),
        "by_position": [
            {"from": start, "before": end, **_agreement(scored, members)}
            for start, end, members in zip(starts, ends, within, strict=True)
            if len(members)
        ],
    }


def _agreement(scored: TokenTable, members: np.ndarray) -> dict[str, Any]:
    found = scored.agreement[members]
    decided = found != UNDECIDED
    kl = mean_with_errors(scored.kl[members], scored.document[members])
    return {
        "n": len(members),
        "undecided": int((~decided).sum()),
        "top1_agreement": number((found[decided] == AGREES).mean()) if decided.any() else "no row with one best entry",
        "kl": kl["mean"],
        "kl_standard_error_documents": kl["standard_error_documents"],
        "ce": number(scored.ce[members].mean()) if len(members) else "no tokens",
    }
