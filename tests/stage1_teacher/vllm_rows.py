"""Documents to score, and what makes rows of two engines the same."""

import numpy as np
import pytest

SWAP = 2e-4
"""Entries closer than this may change places."""


def documents(lengths, vocab=128, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.int32) for length in lengths]


def assert_all_close(found, wanted, targets) -> None:
    """The documents of each of the targets."""
    for each, ours, theirs in zip(targets, found, wanted, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, each)


def assert_close(found, wanted, targets) -> None:
    """The same rows: entries may differ where the last of a row is within SWAP of the next, or of the threshold."""
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    for name in ("label_logprob", "entropy"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-3)
    for t in range(wanted.tokens):
        ours, theirs = (dict(zip(*document.row(t), strict=True)) for document in (found, wanted))
        for token in ours.keys() & theirs.keys():
            assert abs(ours[token] - theirs[token]) < 1e-3
        if targets.mode == "sampled":
            continue
        edge = min(theirs.values(), default=np.log(targets.c))
        assert all(abs({**ours, **theirs}[token] - edge) < SWAP for token in ours.keys() ^ theirs.keys())
        if ours.keys() == theirs.keys():
            assert found.tail_logprob[t] == pytest.approx(wanted.tail_logprob[t], abs=1e-3)
            for tau, tails in wanted.other_tails.items():
                assert found.other_tails[tau][t] == pytest.approx(tails[t], abs=1e-3)


def shared(found, wanted) -> float:
    """The part of the sampled entries that both engines kept."""
    both = sum(len(np.intersect1d(one.row(t)[0], other.row(t)[0])) for one, other in zip(found, wanted) for t in range(other.tokens))
    return both / sum(len(document.ids) for document in wanted)
