"""Plain text: one `.txt` or `.md` file is one document. For a folder of notes, and for trying a shard on one's own words."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stage1_teacher.documents.base import RawDocument, Undecodable, broken_file, decode
from stage1_teacher.documents.identity import identify_files
from stage1_teacher.documents.source_file import SourceFile

SUFFIXES = (".txt", ".md")


@dataclass(frozen=True)
class TextDocuments:
    """One document a file; a byte order mark is no part of the text."""

    files: Sequence[SourceFile]
    undecodable: Undecodable

    def identity(self, like: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return {"source": "text", "column": None, "files": identify_files(self.files, like)}

    def __iter__(self) -> Iterator[RawDocument]:
        for file in self.files:
            try:
                with file.open() as stream:
                    raw = stream.read()
            except OSError as error:
                raise broken_file(file, "", error) from None
            yield decode(raw.removeprefix(codecs.BOM_UTF8), self.undecodable, str(file))
