"""Where the loss is: by the type of the token that is predicted, and of the token it is predicted from."""

from typing import Any

import numpy as np

from stage2_student.diagnostics import token_types
from stage2_student.diagnostics.by_type import by_type
from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.diagnostics.values import mean_with_errors

DEFINITION = {
    **token_types.DEFINITION,
    "by_label": "mean over target tokens of a type; a label is never at position 0, so its document boundaries are separators",
    "by_input": "mean over the targets that follow an input token of a type",
    "ce": "nats a target token; kl is of the run's tail mode",
}


def token_loss(table: TokenTable, input_types: np.ndarray, label_types: np.ndarray) -> dict[str, Any]:
    """CE and KL by type; the types are those of all rows [N], and rows without a label do not count."""
    labelled = np.nonzero(table.has_label)[0]
    scored = table.rows(labelled)
    return {
        "all": _loss(scored, np.arange(len(scored))),
        "by_label": by_type(label_types[labelled], lambda members: _loss(scored, members)),
        "by_input": by_type(input_types[labelled], lambda members: _loss(scored, members)),
    }


def _loss(scored: TokenTable, members: np.ndarray) -> dict[str, Any]:
    documents = scored.document[members]
    return {
        "n": len(members),
        **{name: mean_with_errors(getattr(scored, name)[members], documents)["mean"] for name in ("ce", "kl")},
        "ce_standard_error_documents": mean_with_errors(scored.ce[members], documents)["standard_error_documents"],
    }
