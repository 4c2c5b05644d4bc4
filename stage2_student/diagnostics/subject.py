"""A student under diagnosis: passed over each slice of documents once, whatever is asked of it."""

from functools import cached_property

import numpy as np

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.student import StudentManifest
from stage2_student.diagnostics.forward import token_table
from stage2_student.diagnostics.slices import Slice
from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.diagnostics.token_types import TokenTypes
from stage2_student.model.student import BlockStackForCausalLM


class Subject:
    """One checkpoint's student with the documents it is looked at on."""

    def __init__(
        self,
        student: BlockStackForCausalLM,
        validation: LogitCache,
        settings: StudentManifest,
        types: TokenTypes,
        batch: Slice,
        documents: Slice,
    ) -> None:
        self._student, self._validation, self._settings, self._types = student, validation, settings, types
        self._batch, self._documents = batch, documents

    @cached_property
    def batch(self) -> TokenTable:
        """The diagnostic batch."""
        return token_table(self._student, self._validation, self._batch, self._settings)

    @cached_property
    def without(self) -> list[TokenTable]:
        """The diagnostic batch without each block in turn."""
        return [
            token_table(self._student, self._validation, self._batch, self._settings, bypass=[block])
            for block in range(len(self._student.blocks))
        ]

    @cached_property
    def documents(self) -> TokenTable:
        """The first documents of the validation split."""
        return token_table(self._student, self._validation, self._documents, self._settings)

    def input_types(self, table: TokenTable) -> np.ndarray:
        """[N] places in TYPES."""
        return self._types.of(table.token, table.position)

    def label_types(self, table: TokenTable) -> np.ndarray:
        """[N] places in TYPES of the tokens that follow; of no meaning where none does."""
        return self._types.of(np.where(table.has_label, table.label, table.token), table.position + 1)
