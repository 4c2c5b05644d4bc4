"""Text to token ids: each document alone, the separator explicit, truncated to the maximum."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import Documents
from stage1_teacher.teacher_files import TeacherFiles


class DocumentTokenizer:
    """The teacher's tokenizer under a shard's rules."""

    def __init__(self, files: TeacherFiles, documents: Documents) -> None:
        self.tokenizer: Any = _load(files)
        self.max_length = documents.max_length
        self.separator_id = self._separator(documents.separator)

    @property
    def size(self) -> int:
        """One above the largest id it can give."""
        return max(self.tokenizer.get_vocab().values()) + 1

    def _separator(self, token: str) -> int:
        vocabulary = self.tokenizer.get_vocab()
        if token not in vocabulary:
            known = ", ".join(sorted({str(special) for special in self.tokenizer.all_special_tokens}))
            raise TeacherError(f"documents.separator={token}: is not a token of the teacher's tokenizer; its special tokens are {known}")
        return int(vocabulary[token])

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """One [T] int32 array a text, 1 <= T <= max_length: its tokens, then the separator unless it was truncated."""
        if not texts:
            return []
        encoded = self.tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
        return [self._finish(ids) for ids in encoded]

    def _finish(self, ids: list[int]) -> np.ndarray:
        kept = ids[: self.max_length] if len(ids) >= self.max_length else [*ids, self.separator_id]
        return np.array(kept, dtype=np.int32)


@lru_cache(maxsize=1)  # a GGUF tokenizer takes half a minute to build
def _load(files: TeacherFiles) -> Any:
    """tokenizer.json is taken as it stands: for some families AutoTokenizer builds another tokenizer of the same vocabulary."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if files.gguf_file is None and (files.folder / "tokenizer.json").is_file():
        return PreTrainedTokenizerFast.from_pretrained(files.folder)
    return AutoTokenizer.from_pretrained(files.folder, **files.load_arguments())
