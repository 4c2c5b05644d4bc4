"""Documents in JSON lines, plain and compressed, the broken ones among them."""

import random
from pathlib import Path

import pytest
import zstandard
from corpora import jsonl, one_line, opened, pack, texts, zeros

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.base import RawDocument


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_jsonl_plain_and_compressed(tmp_path: Path, name: str) -> None:
    long = "x" * 300_000  # longer than any buffer
    path = pack(tmp_path / name, jsonl({"text": "a\nb"}, {"text": None}, {"text": " "}) + b"\n" + jsonl({"n": 1, "text": long}))
    assert list(opened("jsonl", tmp_path)) == [
        RawDocument("a\nb", f"{path} line 1"),
        RawDocument(None, f"{path} line 2", "null"),
        RawDocument(None, f"{path} line 3", "empty"),
        RawDocument(long, f"{path} line 5"),
    ]


def test_a_last_line_without_newline_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl({"text": "one"}) + b'{"text": "two"}')
    assert texts(opened("jsonl", tmp_path)) == ["one", "two"]


def test_zstd_frames_follow_each_other(tmp_path: Path) -> None:
    frames = [zstandard.ZstdCompressor().compress(jsonl({"text": f"frame {i}"})) for i in range(3)]
    (tmp_path / "a.jsonl.zst").write_bytes(b"".join(frames) + b"\x50\x2a\x4d\x18\x02\x00\x00\x00hi")  # and a skippable one
    assert texts(opened("jsonl", tmp_path)) == ["frame 0", "frame 1", "frame 2"]


def test_zstd_with_a_long_window_is_read(tmp_path: Path) -> None:
    """zstd --long=28: past the library's default limit of 128 MB."""
    stream = zstandard.ZstdCompressor(compression_params=zstandard.ZstdCompressionParameters.from_level(1, window_log=28)).compressobj()
    (tmp_path / "a.jsonl.zst").write_bytes(stream.compress(jsonl({"text": "far"})) + stream.flush())
    assert texts(opened("jsonl", tmp_path)) == ["far"]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
@pytest.mark.parametrize("keep", [0, 0.6, 0.99])
def test_a_truncated_compressed_file_is_an_error(tmp_path: Path, name: str, keep: float) -> None:
    noise = random.Random(0).randbytes(40_000).hex()
    path = pack(tmp_path / name, jsonl({"text": "first"}, {"text": noise}, {"text": noise[::-1]}))
    path.write_bytes(path.read_bytes()[: int(keep * path.stat().st_size)])
    with pytest.raises(DocumentError) as error:
        list(opened("jsonl", path))
    assert str(path) in one_line(error) and "fetch it again" in one_line(error)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.jsonl.zst"])
def test_a_corrupt_compressed_file_is_an_error(tmp_path: Path, name: str) -> None:
    path = pack(tmp_path / name, jsonl({"text": "first"}, {"text": random.Random(0).randbytes(40_000).hex()}))
    data = bytearray(path.read_bytes())
    zeros(data, len(data) // 2, len(data) // 2 + 2000)
    path.write_bytes(data)
    with pytest.raises(DocumentError, match=r"a\.jsonl\.(gz|zst) .*fetch (it|the file) again"):  # damaged deflate may still inflate
        list(opened("jsonl", path))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"text": "cut of', "is not JSON"),
        (b'["a"]', "a JSON list"),
        (b'{"content": "x", "id": 3}', "no key 'text'; its keys are content, id: --set documents.column="),
        (b'{"text": 3}', "'text' holds a int, not text"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: bytes, says: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl({"text": "fine"}) + line + b"\n")
    with pytest.raises(DocumentError) as error:
        list(opened("jsonl", tmp_path))
    assert f"{tmp_path}/a.jsonl line 2: " in one_line(error) and says in one_line(error)


@pytest.mark.parametrize("line", [b'{"text": "caf\xe9"}', rb'{"text": "caf\ud800"}'], ids=["bytes", "lone surrogate"])
def test_undecodable_lines_follow_the_policy(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(line + b"\n" + jsonl({"text": "after"}))
    with pytest.raises(DocumentError, match=r"a\.jsonl line 1: bytes"):
        list(opened("jsonl", tmp_path))
    assert [document.skip for document in opened("jsonl", tmp_path, undecodable="skip")] == ["undecodable", None]
    replaced = texts(opened("jsonl", tmp_path, undecodable="replace"))[0]
    assert replaced and replaced.rstrip("\ufffd") == "caf" and replaced != "caf"


def test_jsonl_is_read_lazily(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl({"text": "first"}) + b"not JSON\n")
    assert next(iter(opened("jsonl", tmp_path))).text == "first"
