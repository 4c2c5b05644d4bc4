"""Rows of chunks become documents: cut where documents end, without the slots that were free."""

import numpy as np
import pytest
import torch
from reference_rows import rows_of

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.scored import ScoredRows
from stage1_teacher.targets import keep

LENGTHS = [3, 1, 6, 2, 1, 9]
TARGETS = [Targets(k=5), Targets(mode="threshold", c=0.05), Targets(mode="sampled", c=1 / 16), Targets(k=5, temperatures=[2.0, 0.5])]


@pytest.mark.parametrize("chunk", [1, 4, 100])
@pytest.mark.parametrize("targets", TARGETS)
def test_documents_are_cut_out_of_any_chunks(targets, chunk):
    """Chunks are of different widths when rows keep as many entries as they like."""
    token_ids = [np.arange(length, dtype=np.int32) for length in LENGTHS]
    rows = sum(LENGTHS) - len(LENGTHS)
    logits = torch.randn(rows, 60, generator=torch.Generator().manual_seed(0)) * torch.linspace(0, 5, rows)[:, None]
    labels, draws = torch.arange(rows), torch.arange(rows) << 35
    scored = ScoredRows(targets)
    for start in range(0, rows, chunk):
        part = slice(start, start + chunk)
        scored.add(keep(logits[part].clone(), labels[part], targets, draws[part]))
    documents = list(scored.documents(token_ids))
    row = 0
    for tokens, document in zip(token_ids, documents, strict=True):
        np.testing.assert_array_equal(document.token_ids, tokens)
        assert document.counts.dtype == np.uint8 and document.ids.dtype == np.int32 and document.logprobs.dtype == np.float32
        assert set(document.other_tails) == set(targets.other_temperatures)
        assert (document.drawn is not None) == (document.tail_square is not None) == (targets.mode == "sampled")
        for t, (ids, logprobs) in enumerate(zip(rows_of(document, document.ids), rows_of(document, document.logprobs), strict=True)):
            alone = keep(logits[row : row + 1].clone(), labels[row : row + 1], targets, draws[row : row + 1])
            count = int(alone.counts)
            assert ids.tolist() == alone.ids[0, :count].tolist()
            np.testing.assert_allclose(logprobs, alone.logprobs[0, :count], atol=1e-6)
            tails = [document.tail_logprob[t], *(tail[t] for tail in document.other_tails.values())]
            np.testing.assert_allclose(tails, alone.tail_logprob[0], atol=1e-6)
            assert document.label_logprob[t] == pytest.approx(alone.label_logprob.item(), abs=1e-6)
            assert document.drawn is None or document.drawn[t] == alone.drawn
            row += 1
    assert row == rows


@pytest.mark.parametrize("targets", TARGETS)
def test_documents_of_one_token_need_no_rows(targets):
    one, other = ScoredRows(targets).documents([np.array([4], dtype=np.int32)] * 2)
    assert one.tokens == other.tokens == 0
    for name in ("counts", "tail_logprob", "label_logprob", "ids", "logprobs", "entropy"):
        assert len(getattr(one, name)) == 0
