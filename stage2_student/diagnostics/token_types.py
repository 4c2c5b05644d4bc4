"""Which tokens are structure and which are text: by position as well as by id, since without a BOS the first token takes its part."""

import numpy as np
from tokenizers import Tokenizer

TYPES = ("document_boundary", "special", "delimiter", "regular")
BOUNDARY, SPECIAL, DELIMITER, REGULAR = range(4)

DELIMITERS = frozenset(".,;:!?\u3002\uff0c\uff1b\uff1a\uff01\uff1f\u3001")

DEFINITION = {
    "document_boundary": "the first token of a document (position 0), and the separator wherever it stands",
    "special": "another id that the tokenizer declares special",
    "delimiter": "nothing but . , ; : ! ? (ASCII or full width) once blanks around it are gone, or blanks with a line break among them",
    "regular": "every other token",
}


class TokenTypes:
    """The types of a tokenizer's ids, decided when an id is first met."""

    def __init__(self, tokenizer: Tokenizer, separator_id: int) -> None:
        self._tokenizer = tokenizer
        self._special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self._separator = separator_id

    def of(self, token_ids: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """[N] places in TYPES of tokens [N] at positions [N] of their documents."""
        distinct, place = np.unique(token_ids, return_inverse=True)
        types = np.array([self._type(int(index)) for index in distinct], dtype=np.uint8)[place]
        return np.where(positions == 0, np.uint8(BOUNDARY), types)

    def _type(self, index: int) -> int:
        if index == self._separator:
            return BOUNDARY
        if index in self._special:
            return SPECIAL
        return DELIMITER if is_delimiter(self._tokenizer.decode([index], skip_special_tokens=False)) else REGULAR


def is_delimiter(text: str) -> bool:
    """Whether a token's text only ends or separates."""
    seen = text.strip()
    return set(seen) <= DELIMITERS if seen else "\n" in text
