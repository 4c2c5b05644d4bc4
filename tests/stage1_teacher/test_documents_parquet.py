"""Documents in parquet, the broken and the huge ones among them (field cases 2, 4, 5)."""

import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpora import fineweb, one_line, opened, texts, zeros

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents import parquet
from stage1_teacher.documents.base import RawDocument

ROOT = Path(__file__).parents[2]


def test_parquet_yields_every_row_in_file_order(tmp_path: Path) -> None:
    fineweb(tmp_path / "fw" / "001.parquet", ["third"], row_group_size=1)
    first = fineweb(tmp_path / "fw" / "000.parquet", ["first", None, " \n\t", "", "second"], row_group_size=2)
    assert list(opened("parquet", tmp_path / "fw")) == [
        RawDocument("first", f"{first} row 0"),
        RawDocument(None, f"{first} row 1", "null"),
        RawDocument(None, f"{first} row 2", "empty"),
        RawDocument(None, f"{first} row 3", "empty"),
        RawDocument("second", f"{first} row 4"),
        RawDocument("third", f"{tmp_path}/fw/001.parquet row 0"),
    ]


def test_parquet_rows_are_numbered_across_batches_and_row_groups(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "a.parquet", [f"document {i}" for i in range(500)], row_group_size=90)
    found = list(opened("parquet", path))
    assert [document.text for document in found] == [f"document {i}" for i in range(500)]
    assert [document.origin for document in found] == [f"{path} row {i}" for i in range(500)]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.binary(), pa.large_binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_reads_every_kind_of_text_column(tmp_path: Path, kind: pa.DataType) -> None:
    values = ["one", None, "zwölf", "one"]
    plain = (
        pa.array([value and value.encode() for value in values], pa.binary()) if "binary" in str(kind) else pa.array(values, pa.string())
    )
    column = plain.dictionary_encode() if pa.types.is_dictionary(kind) else plain.cast(kind)
    pq.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    assert texts(opened("parquet", tmp_path / "a.parquet")) == values


def test_undecodable_text_in_a_string_column_follows_the_policy(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "bad.parquet", ["fine", b"caf\xe9 au lait", "after"])
    with pytest.raises(DocumentError) as error:
        list(opened("parquet", path))
    assert f"{path} row 1" in one_line(error) and r"b'\xe9'" in one_line(error) and "documents.undecodable=skip" in one_line(error)
    skipped = list(opened("parquet", path, undecodable="skip"))
    assert skipped[1] == RawDocument(None, f"{path} row 1", "undecodable")
    assert [document.text for document in skipped] == ["fine", None, "after"]
    assert texts(opened("parquet", path, undecodable="replace")) == ["fine", "caf\ufffd au lait", "after"]


def test_a_missing_column_names_those_present(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "a.parquet", ["x"])
    with pytest.raises(DocumentError) as error:
        iter(opened("parquet", path, column="content"))
    assert all(part in one_line(error) for part in (str(path), "'content'", "text, id, dump", "--set documents.column="))


def test_a_column_of_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"'token_count' holds int64, not text"):
        iter(opened("parquet", fineweb(tmp_path / "a.parquet", ["x"]), column="token_count"))


@pytest.mark.parametrize("keep", [0, 3, 0.5, 0.999])
def test_a_truncated_file_is_found_before_the_first_document(tmp_path: Path, keep: float) -> None:
    fineweb(tmp_path / "000.parquet", ["whole"] * 9)
    cut = fineweb(tmp_path / "001.parquet", [f"text {i}" for i in range(200)])
    whole = cut.read_bytes()
    size = int(keep * len(whole)) if keep < 1 else int(keep)
    cut.write_bytes(whole[:size])
    with pytest.raises(DocumentError) as error:
        iter(opened("parquet", tmp_path))
    assert all(part in one_line(error) for part in (str(cut), f"({size:,} bytes)", "fetch it again"))


def damage_page(path: Path, row_group: int, change: Callable[[bytearray, int, int], None]) -> None:
    chunk = pq.ParquetFile(path).metadata.row_group(row_group).column(0)
    data = bytearray(path.read_bytes())
    change(data, chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size)
    path.write_bytes(data)


def one_bit(data: bytearray, start: int, end: int) -> None:
    data[end - 9] ^= 1


@pytest.mark.parametrize(
    ("change", "options"),
    [(zeros, {"compression": "snappy"}), (zeros, {"compression": "none"}), (one_bit, {"compression": "none", "write_page_checksum": True})],
)
def test_a_hole_in_the_middle_names_file_and_row(tmp_path: Path, change: Any, options: dict[str, Any]) -> None:
    path = fineweb(tmp_path / "a.parquet", [f"text {i} " * 50 for i in range(512)], row_group_size=64, use_dictionary=False, **options)
    damage_page(path, 5, change)
    found: list[RawDocument] = []
    with pytest.raises(DocumentError) as error:
        found.extend(opened("parquet", path))  # the footer is whole: it starts
    assert f"{path} row 320: " in one_line(error) and "fetch it again" in one_line(error)
    read = list(itertools.islice(opened("parquet", path), 320))
    assert read[-1].text == "text 319 " * 50


PEAK = """
import sys, pyarrow as pa
from stage1_teacher.documents.parquet import ParquetDocuments
from stage1_teacher.documents.source_file import SourceFile
source = ParquetDocuments([SourceFile(sys.argv[1], "a")], "text", "error")
characters = sum(len(document.text) for document in source)
print(characters, pa.default_memory_pool().max_memory(), pa.total_allocated_bytes())
"""


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_one_huge_row_group_is_read_in_bounded_memory(tmp_path: Path, compression: str) -> None:
    words = random.Random(0).choices("abcdefgh ", k=1 << 20)
    block = "".join(words)
    rows = [block[i : i + 1000] for i in range(0, 1_024_000, 16)]  # 64,000 rows, 64 MB, in pages of 1 MB
    path = fineweb(tmp_path / "a.parquet", rows, row_group_size=len(rows), compression=compression)
    assert pq.ParquetFile(path).num_row_groups == 1
    ran = subprocess.run([sys.executable, "-c", PEAK, path], cwd=ROOT, capture_output=True, text=True, check=True)
    characters, peak, left = map(int, ran.stdout.split())
    assert characters == 64_000_000
    assert peak < 8_000_000, "Arrow held more than an eighth of the row group"
    assert left < 1_000_000


class CountedOpens(pq.ParquetFile):
    """How many files were opened, and how many at once."""

    opened = now = most = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        CountedOpens.opened, CountedOpens.now = CountedOpens.opened + 1, CountedOpens.now + 1
        CountedOpens.most = max(CountedOpens.most, CountedOpens.now)

    def close(self, force: bool = False) -> None:
        CountedOpens.now -= 1
        super().close(force)


def test_footers_are_checked_once_and_files_do_not_stay_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        fineweb(tmp_path / f"{number:03}.parquet", [f"document {number}"])
    monkeypatch.setattr(pq, "ParquetFile", CountedOpens)
    monkeypatch.setattr(parquet, "FOOTERS_A_BATCH", 100)
    source = opened("parquet", tmp_path)
    assert CountedOpens.opened == 0
    iterator = iter(source)
    assert CountedOpens.opened == 300 and CountedOpens.now == 0
    assert next(iterator).text == "document 0" and CountedOpens.opened == 301
    assert texts(source) == texts(source) == [f"document {number}" for number in range(300)]
    assert CountedOpens.opened == 901, "the second and third pass read the footers again"
    assert CountedOpens.most <= parquet.FOOTERS_AT_ONCE


def test_the_first_of_several_broken_files_is_named(tmp_path: Path) -> None:
    for number in range(40):
        fineweb(tmp_path / f"{number:02}.parquet", ["x"])
    for number in (17, 18, 39):
        (tmp_path / f"{number}.parquet").write_bytes(b"PAR1")
    with pytest.raises(DocumentError, match=r"17\.parquet: the file \(4 bytes\) is truncated"):
        iter(opened("parquet", tmp_path))
