"""Plain text: a file, a document."""

from pathlib import Path

import pytest
from corpora import opened

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import RawDocument


def test_text_files_of_a_folder(tmp_path: Path) -> None:
    for name, data in {"b.md": b"# b", "a.txt": b"\xef\xbb\xbfa", "sub/c.txt": b"  ", ".git/d.txt": b"no", "e.py": b"no"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    assert list(opened("text", tmp_path)) == [
        RawDocument("a", f"{tmp_path}/a.txt"),
        RawDocument("# b", f"{tmp_path}/b.md"),
        RawDocument(None, f"{tmp_path}/sub/c.txt", "empty"),
    ]


def test_an_undecodable_text_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    with pytest.raises(DocumentError, match=r"a\.txt: bytes"):
        list(opened("text", tmp_path))
