"""Documents from real files, the broken ones among them (field cases 1 to 5)."""

import gzip
import itertools
import json
import os
import platform
import random
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import zstandard

from pipeline.contract.errors import DocumentError, NotThereYet
from pipeline.contract.hashing import CHUNK_BYTES, hash_bytes, hash_file, hash_json
from pipeline.contract.manifest.overrides import merge, nested, read_overrides, split_by_owner
from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import DocumentSource, RawDocument
from stage1_teacher.documents.installed import InstalledDocuments, find_sources
from stage1_teacher.documents.open_source import open_documents

ROOT = Path(__file__).parents[2]
Texts = Sequence[str | bytes | None]


def documents(source: str, *files: Path | str, **more: Any) -> Documents:
    settings = {"source": source, "files": [str(file) for file in files], "limit": 1, "validation": {"documents": 1}} | more
    return Documents.model_validate(settings)


def opened(source: str, *files: Path | str, **more: Any) -> DocumentSource:
    return open_documents(documents(source, *files, **more))


def texts(source: DocumentSource) -> list[str | None]:
    return [document.text for document in source]


def string_array(values: Texts) -> pa.Array:
    """A string column that may hold bytes that are not UTF-8, as careless writers make them."""
    raw = [value.encode() if isinstance(value, str) else value for value in values]
    binary = pa.array(raw, pa.binary())
    return pa.StringArray.from_buffers(len(binary), binary.buffers()[1], binary.buffers()[2], binary.buffers()[0])


def fineweb(path: Path, values: Texts, **options: Any) -> Path:
    """A parquet file in FineWeb-Edu's layout."""
    rows = len(values)
    columns = {"text": string_array(values), "id": [f"<urn:uuid:{i}>" for i in range(rows)], "dump": ["CC-MAIN-2013-20"] * rows}
    columns |= {name: [f"{name} {i}" for i in range(rows)] for name in ("url", "date", "file_path", "language")}
    columns |= {"language_score": [0.9] * rows, "token_count": list(range(rows))}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return path


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    message = str(error.value)
    assert "\n" not in message
    return message


# --- parquet ---


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


def zeros(data: bytearray, start: int, end: int) -> None:
    data[start:end] = bytes(end - start)


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
from pathlib import Path
from stage1_teacher.documents.files import SourceFile
from stage1_teacher.documents.parquet import ParquetDocuments
source = ParquetDocuments([SourceFile(Path(sys.argv[1]), "a")], "text", "error")
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


# --- jsonl ---


def pack(path: Path, data: bytes) -> Path:
    compress = {".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}.get(path.suffix, bytes)
    path.write_bytes(compress(data))
    return path


def jsonl(*records: Any) -> bytes:
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


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


# --- text ---


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


# --- files ---


def test_entries_keep_their_order_and_no_file_is_read_twice(tmp_path: Path) -> None:
    for name in ("z/2.txt", "z/10.txt", "a/1.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert texts(opened("text", tmp_path / "z", tmp_path / "a/1.txt", tmp_path / "z/*.txt")) == ["z/10.txt", "z/2.txt", "a/1.txt"]
    assert texts(opened("text", f"{tmp_path}/**/*.txt")) == ["a/1.txt", "z/10.txt", "z/2.txt"]


@pytest.mark.parametrize("entry", ["nowhere", "nowhere/*.parquet", ""])
def test_an_entry_that_gives_nothing_is_named(tmp_path: Path, entry: str) -> None:
    (tmp_path / "readme.md").write_text("no parquet here")
    with pytest.raises(DocumentError) as error:
        opened("parquet", tmp_path / entry)
    assert all(part in one_line(error) for part in (f"documents.files={tmp_path / entry}", ".parquet", "--set documents.files="))


def test_no_entry_at_all_and_urls_say_what_to_do() -> None:
    with pytest.raises(DocumentError, match=r"--set documents\.files=PATH"):
        opened("parquet")
    with pytest.raises(NotThereYet, match=r"--set documents\.files=PATH"):
        opened("parquet", "s3://bucket/a.parquet")
    with pytest.raises(DocumentError, match="hub:datasets/OWNER/NAME/PATTERN"):
        opened("parquet", "hub:HuggingFaceFW/fineweb-edu")


def test_identity_of_files_is_names_sizes_and_hashes(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "fw" / "000.parquet", ["x"])
    expected = {"name": "000.parquet", "bytes": path.stat().st_size, "xxh3_128": xxhash.xxh3_128_hexdigest(path.read_bytes())}
    identity = opened("parquet", path).identity()
    assert identity == {"source": "parquet", "column": "text", "files": [expected]}
    assert identity == opened("parquet", path.parent).identity() == opened("parquet", f"{tmp_path}/fw/*.parquet").identity()
    fineweb(path, ["y"])
    assert opened("parquet", path).identity() != identity


def test_hashes(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(2 * CHUNK_BYTES + 7)
    (tmp_path / "a").write_bytes(data)
    assert hash_file(tmp_path / "a") == hash_bytes(data) == xxhash.xxh3_128_hexdigest(data)
    assert hash_bytes(b"") == "99aa06d3014798d86001c324468d497f"  # the value for no input, seed 0, in xxHash's own documentation
    assert hash_json({"b": 1, "a": [2]}) == hash_json({"a": [2], "b": 1}) == hash_bytes(b'{"a":[2],"b":1}')


# --- hub ---

RESOLVE = """
import json, sys
from pipeline.contract.errors import DocumentError
from stage1_teacher.documents import files
files.HUB_SECONDS = 1
try:
    print(json.dumps([[str(file.path), file.name] for file in files.resolve_files([sys.argv[1]], (".parquet",))]))
except DocumentError as error:
    sys.exit(f"DocumentError {error}")
"""
ENTRY = "hub:datasets/HuggingFaceFW/fineweb-edu/sample/10BT/*.parquet"


def resolve_in_new_process(entry: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The hub library reads its environment once, on import."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_") and "proxy" not in name.lower()}
    run = [sys.executable, "-c", RESOLVE, entry]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=20, env=kept | environment, check=False)


# Nothing listens on port 9: the connection is refused, as on a machine without network.
@pytest.mark.parametrize("environment", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["offline", "no network"])
def test_a_hub_set_that_is_not_here_fails_fast_with_both_ways_out(tmp_path: Path, environment: dict[str, str]) -> None:
    ran = resolve_in_new_process(ENTRY, HF_HOME=str(tmp_path), **environment)
    assert ran.returncode == 1 and ran.stderr.count("\n") == 1, ran.stderr
    download = "hf download HuggingFaceFW/fineweb-edu --repo-type dataset --include 'sample/10BT/*.parquet'"
    assert all(part in ran.stderr for part in ("DocumentError dataset HuggingFaceFW/fineweb-edu", download, "--set documents.files=PATH"))


def test_a_hub_that_never_answers_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ran = resolve_in_new_process(ENTRY, HF_HOME=str(tmp_path), HF_ENDPOINT=f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "--set documents.files=PATH" in ran.stderr and "Timeout" in ran.stderr


@pytest.mark.parametrize("pattern", ["sample/10BT/*.parquet", "sample/10BT", "sample/10BT/*"])
def test_a_hub_set_in_the_local_cache_is_found_offline(tmp_path: Path, pattern: str) -> None:
    cache = tmp_path / "hub" / "datasets--HuggingFaceFW--fineweb-edu"
    snapshot = cache / "snapshots" / ("0" * 40)
    for name in ("sample/10BT/001.parquet", "sample/10BT/000.parquet", "sample/100BT/000.parquet", "sample/10BT/notes.md"):
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_text(name)
    (cache / "refs").mkdir()
    (cache / "refs" / "main").write_text("0" * 40)
    entry = f"hub:datasets/HuggingFaceFW/fineweb-edu/{pattern}"
    ran = resolve_in_new_process(entry, HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == [[f"{snapshot}/sample/10BT/{name}", name] for name in ("000.parquet", "001.parquet")]


# --- installed ---


def docstring(name: str) -> str:
    return f"{name} " + "explains itself at length. " * 10


def definitions(*names: str) -> str:
    return "".join(f'def {name}():\n    """{docstring(name)}"""\n\n\n' for name in names)


FAKE_FILES = {
    "fake_lib/__init__.py": b"raise SystemExit('imported')\n",
    "fake_lib/many.py": f'"""{docstring("module")}"""\n\n\n{definitions("f", "g")}class C:\n    """Short."""\n\n'.encode()
    + b"    async def m(self):\n"
    + f'        """{docstring("m")}\n\n          indented\n        """\n\n\n{definitions("n")}'.encode(),
    "fake_lib/tests/test_many.py": definitions("hidden").encode(),
    "fake_lib/broken.py": definitions("hidden").encode() + b"def (:\n",
    "fake_lib/latin.py": b"# -*- coding: latin-1 -*-\n" + definitions("caf\xe9").encode("latin-1"),
    "fake_lib/surrogate.py": b'"""' + rb"lone \ud800" + b" x" * 200 + b'"""\n',
}


@pytest.fixture
def fake_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The distribution fake-dist 1.2+local, whose import name is another."""
    site = tmp_path / "site"
    info = site / "fake_dist-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-dist\nVersion: 1.2+local\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*FAKE_FILES, "../bin/fake.py", "fake_lib/gone.py"]))
    for name, data in (FAKE_FILES | {"../bin/fake.py": b""}).items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(data)
    monkeypatch.syspath_prepend(str(site))
    return site


def test_a_package_gives_four_docstrings_a_file_in_source_order(fake_distribution: Path) -> None:
    everything = find_sources({"fake-dist": "1.2"})
    own = [source for source in everything if source.name.startswith("fake_lib/")]
    found = list(InstalledDocuments(own, {"fake-dist": "1.2"}, "skip"))
    many = [document for document in found if "many.py" in document.origin]
    assert [(document.text or "").split()[0] for document in many] == ["module", "f", "g", "m"]  # not C (short), not n (the fifth)
    assert [document.origin.rpartition(" ")[2] for document in many] == ["1", "4", "8", "15"]
    assert (many[3].text or "").endswith("\n\nindented")
    others = {Path(document.origin.split(" line")[0]).name: (document.text or "")[:4] for document in found if document not in many}
    assert others == {"latin.py": "café", "surrogate.py": ""}


def test_the_order_is_that_of_the_hashes_of_the_names(fake_distribution: Path) -> None:
    names = [source.name for source in find_sources({"fake-dist": "1.2"})]
    assert names == sorted(names, key=lambda name: xxhash.xxh3_64_hexdigest(name.encode()))
    assert {"topics/assert", "stdlib/json/decoder.py", "fake_lib/many.py", "fake_lib/broken.py"} <= set(names)
    skipped = {"test", "tests", "idlelib", "lib2to3", "turtledemo", "ensurepip", "site-packages", "__pycache__", ".."}
    assert not [name for name in names if skipped & set(name.split("/"))]


def test_installed_documents_are_the_same_twice(fake_distribution: Path) -> None:
    packages = {"fake-dist": "1.2"}
    first, second = opened("installed", packages=packages), opened("installed", packages=packages)
    fifty = list(itertools.islice(first, 50))
    assert fifty == list(itertools.islice(second, 50)) == list(itertools.islice(first, 50))
    assert all(document.text and len(document.text) >= 200 for document in fifty)
    assert len({document.origin.split(" line")[0] for document in fifty}) > 12
    identity = first.identity()
    assert identity == second.identity() and json.loads(json.dumps(identity)) == identity
    assert (identity["source"], identity["python"], identity["packages"]) == ("installed", platform.python_version(), packages)
    with open(fake_distribution / "fake_lib/many.py", "a") as file:
        file.write("\n")
    changed = first.identity()
    assert changed["xxh3_128"] != identity["xxh3_128"] and changed["files"] == identity["files"]


def test_a_missing_package_says_how_to_install_it() -> None:
    with pytest.raises(DocumentError, match=r"not installed; pip install no-such-distribution==1\.0"):
        opened("installed", packages={"no-such-distribution": "1.0"})


def test_another_version_gives_both_ways_out_and_the_second_works(fake_distribution: Path) -> None:
    pinned = documents("installed", packages={"fake-dist": "1.3"})
    with pytest.raises(DocumentError) as error:
        open_documents(pinned)
    message = one_line(error)
    assert "1.3 is pinned, and 1.2+local is installed; pip install fake-dist==1.3" in message
    words = shlex.split(message)
    shard, _ = split_by_owner(read_overrides([words[words.index("--set") + 1]]))
    mended = merge(pinned.model_dump(), nested(shard)["documents"])
    assert iter(open_documents(Documents.model_validate(mended)))


# --- all of them ---


def test_reading_documents_loads_no_heavy_library() -> None:
    modules = ", ".join(f"stage1_teacher.documents.{name}" for name in ("open_source", "parquet", "jsonl", "text_folder", "installed"))
    check = f"import {modules}, sys; sys.exit(str({{'torch', 'transformers', 'huggingface_hub', 'pydoc_data.topics'}} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.stderr.strip() == "set()", ran.stderr
