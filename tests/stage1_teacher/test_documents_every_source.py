"""What holds for every source of documents."""

import subprocess
import sys
from pathlib import Path

import fsspec
import pytest
from corpora import fineweb, opened, pack, texts

from pipeline.contract.errors import DocumentError

ROOT = Path(__file__).parents[2]
BAD = b"caf\xe9"


def write_undecodable(folder: Path, source: str) -> Path:
    """A document that is not UTF-8, then one that is."""
    match source:
        case "parquet":
            return fineweb(folder / "a.parquet", [BAD, "after"])
        case "text":
            (folder / "a.txt").write_bytes(BAD)
            (folder / "b.txt").write_bytes(b"after")
            return folder / "a.txt"
        case suffix:
            return pack(folder / f"a.{suffix}", b'{"text": "' + BAD + b'"}\n{"text": "after"}\n')


@pytest.mark.parametrize("place", ["local", "memory://undecodable"])
@pytest.mark.parametrize(("source", "where"), [("parquet", " row 0"), ("jsonl", " line 1"), ("jsonl.gz", " line 1"), ("text", "")])
def test_undecodable_text_follows_the_policy_and_is_named(tmp_path: Path, source: str, where: str, place: str) -> None:
    path = str(write_undecodable(tmp_path, source))
    entry = str(tmp_path)
    if place != "local":
        memory = fsspec.filesystem("memory")
        memory.rm("/undecodable", recursive=True) if memory.exists("/undecodable") else None
        memory.put(entry, "/undecodable", recursive=True)
        path, entry = f"memory:///undecodable/{Path(path).name}", place
    kind = source.partition(".")[0]
    with pytest.raises(DocumentError) as error:
        texts(opened(kind, entry))
    assert str(error.value).startswith(f"{path}{where}: bytes b'\\xe9'") and "documents.undecodable=skip (or replace)" in str(error.value)
    assert [document.skip for document in opened(kind, entry, undecodable="skip")] == ["undecodable", None]
    assert texts(opened(kind, entry, undecodable="replace")) == ["caf\ufffd", "after"]


HEAVY = {"torch", "transformers", "huggingface_hub", "fsspec", "aiohttp", "pydoc_data.topics"}


def test_reading_documents_loads_no_heavy_library() -> None:
    modules = ", ".join(f"stage1_teacher.documents.{name}" for name in ("open_source", "parquet", "jsonl", "text_folder", "installed"))
    check = f"import {modules}, sys; sys.exit(str({HEAVY} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr.strip() == "set()", ran.stderr
