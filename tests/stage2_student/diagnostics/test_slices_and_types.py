"""Which documents, how much of them, and what kind of token each is."""

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from stage2_student.diagnostics.slices import diagnostic_batch, first_documents
from stage2_student.diagnostics.token_types import BOUNDARY, DELIMITER, REGULAR, SPECIAL, TokenTypes, is_delimiter

# --- slices ---


def test_the_papers_batch_is_two_rows_of_2048_drawn_by_the_seed():
    lengths = np.full(500, 3000)
    lengths[::2] = 100
    batches = {seed: diagnostic_batch(lengths, seed) for seed in range(20)}
    for batch in batches.values():
        assert batch.lengths == (2048, 2048) and len(set(batch.documents)) == 2 and "shorter" not in batch.about
        assert all(lengths[index] == 3000 for index in batch.documents)
    assert len({batch.documents for batch in batches.values()}) > 15
    assert diagnostic_batch(lengths, 3) == batches[3]


def test_one_long_document_is_filled_up_with_the_longest_others():
    lengths = np.array([10, 900, 2500, 1000, 700, 30])
    batch = diagnostic_batch(lengths, 42)
    assert batch.documents == (2, 3, 1, 4) and batch.lengths == (2048, 1000, 900, 148)
    assert "shorter: 4 rows of 4096 tokens" in batch.about


def test_a_small_split_is_taken_whole_and_said():
    batch = diagnostic_batch(np.array([7, 1, 9]), 42)
    assert sorted(batch.documents) == [0, 2] and sum(batch.lengths) == 16  # one token has no target
    assert "2 rows of 16 tokens" in batch.about and batch.as_json()["target_tokens"] == 14
    assert diagnostic_batch(np.array([], dtype=int), 42).documents == ()


def test_the_first_documents_are_whole():
    found = first_documents(np.array([7, 1, 9, 5]), 3)
    assert (found.documents, found.lengths) == ((0, 2), (7, 9)) and found.about == "the first 2 of 4 validation documents"


# --- types ---


@pytest.fixture(scope="module")
def types() -> TokenTypes:
    """A byte-level tokenizer of a few tokens: 0 the separator, 1 another special one."""
    texts = ["the", ".", "\u0120,", "\u010a", "\u0120", "...\u010a", "a.", "\u0120\u0120\u010a\u010a"]
    tokenizer = Tokenizer(models.BPE({"<end>": 0, "<pad>": 1} | {text: 2 + place for place, text in enumerate(texts)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    return TokenTypes(tokenizer, 0)


def test_every_type_by_id(types):
    later = np.full(10, 3)
    expected = [BOUNDARY, SPECIAL, REGULAR, DELIMITER, DELIMITER, DELIMITER, REGULAR, DELIMITER, REGULAR, DELIMITER]
    assert types.of(np.arange(10), later).tolist() == expected


def test_position_0_is_a_boundary_whatever_the_id(types):
    assert types.of(np.array([2, 3, 1, 2]), np.array([0, 0, 0, 1])).tolist() == [BOUNDARY, BOUNDARY, BOUNDARY, REGULAR]


@pytest.mark.parametrize(("text", "expected"), [("?!", True), ("\uff0c", True), ("", False), (" ", False), ("\t\n", True), ("(", False)])
def test_delimiters(text, expected):
    assert is_delimiter(text) == expected
