"""Documents behind URLs are those of the same files here: order, names, bytes, policies and errors."""

import json
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from corpora import fineweb, jsonl, one_line, opened, pack, texts
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile
from s3_server import forget_clients

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents import source_file


def write_everything(folder: Path) -> Path:
    """Two files of each kind, one in a folder of its own, and what is no document."""
    for number, name in enumerate(("001", "000", "sub/000", ".hidden/000")):
        values = [f"{name} first", None, " ", f"{name} zwölf"]
        fineweb(folder / f"{name}.parquet", values, row_group_size=2)
        (folder / f"{name}.txt").write_text(name)
        suffix = ("jsonl", "jsonl.gz", "jsonl.zst", "jsonl")[number]
        pack(folder / f"{name}.{suffix}", jsonl(*({"text": value} for value in values)))
    return folder


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[str]:
    """The URL of an object store in this process that holds a copy of `write_everything`."""
    write_everything(tmp_path / "here")
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "here"), "/bucket", recursive=True)
    yield "memory://bucket"
    store.rm("/bucket", recursive=True)


def same_as_here(kind: str, here: str, there: str) -> None:
    """The documents, their numbers and their identity are those of the local files."""
    local, remote = opened(kind, here), opened(kind, there)
    found, expected = list(remote), list(local)
    assert [(document.text, document.skip) for document in found] == [(document.text, document.skip) for document in expected]
    assert [document.origin.rpartition("/")[2] for document in found] == [document.origin.rpartition("/")[2] for document in expected]
    assert found and remote.identity() == local.identity()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "text"])
@pytest.mark.parametrize("entry", ["", "/", "/sub", "/*", "/**/*", "/sub/000.{}"])
def test_a_bucket_is_read_as_the_folder_it_was_copied_from(tmp_path: Path, memory: str, kind: str, entry: str) -> None:
    entry = entry.format({"parquet": "parquet", "jsonl": "jsonl.zst", "text": "txt"}[kind])
    same_as_here(kind, f"{tmp_path}/here{entry}", f"{memory}{entry}")


def test_entries_here_and_there_keep_their_order_and_none_is_read_twice(tmp_path: Path, memory: str) -> None:
    source = opened("text", f"{memory}/sub", tmp_path / "here/000.txt", f"{memory}/**/*.txt")
    assert texts(source) == ["sub/000", "000", "000", "001"]
    assert [document.origin for document in source][:2] == ["memory:///bucket/sub/000.txt", f"{tmp_path}/here/000.txt"]


def test_a_file_that_is_named_needs_no_suffix(memory: str) -> None:
    fsspec.filesystem("memory").pipe("/bucket/README", b"read me")
    assert texts(opened("text", f"{memory}/README")) == ["read me"]


class Unsigned(Exception):
    """A client's own kind of error: no OSError."""


class Refusing(MemoryFileSystem):
    protocol = "refusing"

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        raise Unsigned("no credentials\nand a second line")


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("memory://bucket/nothing", "nothing is there, or nothing answers (/bucket/nothing)"),
        ("memory://bucket/nothing/*.txt", "gives no .txt or .md file"),
        ("memory://bucket/*.parquet", "gives no .txt or .md file"),
        ("nowhere://bucket/a.txt", "fsspec knows no such protocol"),
        ("absent://bucket/a.txt", "Install absentfs; run pip install with the package named"),
        ("refusing://bucket/a.txt", "cannot be listed (Unsigned: no credentials); check the address, network and credentials"),
    ],
)
def test_what_cannot_be_listed_is_one_line(memory: str, url: str, says: str) -> None:
    fsspec.register_implementation("absent", "absentfs.Absent", errtxt="Install absentfs", clobber=True)
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with pytest.raises(DocumentError) as error:
        opened("text", url)
    message = one_line(error)
    assert message.startswith(f"documents.files={url}: ") and says in message and "; " in message


def test_a_truncated_file_is_named_with_its_size_before_the_first_document(memory: str) -> None:
    store = fsspec.filesystem("memory")
    store.pipe("/bucket/001.parquet", store.cat("/bucket/001.parquet")[:100])
    with pytest.raises(DocumentError) as error:
        iter(opened("parquet", memory))
    assert one_line(error).startswith("memory:///bucket/001.parquet: the file (100 bytes) is truncated")
    assert "fetch it again" in one_line(error)


class Ranges(MemoryFileSystem):
    """A store that gives ranges, counts them, and may stop answering."""

    protocol = "ranges"
    cachable = False
    fetched: list[tuple[str, int]] = []
    patience = 1 << 40

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.removeprefix("ranges://")))

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **options: Any) -> Any:
        return RangesFile(self, path, mode, block_size, cache_type=options["cache_type"])


class RangesFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        Ranges.patience -= 1
        if Ranges.patience < 0:
            raise ConnectionResetError("the peer is gone")
        Ranges.fetched.append((self.path, end - start))
        return bytes(self.fs.cat_file(self.path, start, end))


@pytest.fixture
def ranges(memory: str, monkeypatch: pytest.MonkeyPatch) -> str:
    fsspec.register_implementation("ranges", Ranges, clobber=True)
    monkeypatch.setattr(Ranges, "fetched", [])
    monkeypatch.setattr(Ranges, "patience", 1 << 40)
    monkeypatch.setattr(source_file, "REMOTE_BLOCK", 1 << 16)
    return "ranges://bucket"


def write_wide(path: Path) -> int:
    """1,280 documents of 1,000 characters in ten row groups, beside ids that are nine times as long; the bytes of the file."""
    values = [f"{number:04} " + "abcd " * 199 for number in range(1280)]
    fineweb(path, values, row_group_size=128, compression="none", use_dictionary=False, padding=9_000)
    fsspec.filesystem("memory").put(str(path), "/bucket/wide/a.parquet")
    return path.stat().st_size


def test_a_column_is_read_in_ranges_and_the_others_are_not_downloaded(tmp_path: Path, ranges: str) -> None:
    size = write_wide(tmp_path / "wide.parquet")
    source = opened("parquet", f"{ranges}/wide")
    iterator = iter(source)
    assert 0 < sum(length for _, length in Ranges.fetched) <= 1 << 17, "more than a footer"
    next(iterator)
    assert sum(length for _, length in Ranges.fetched) < size / 10
    assert len(texts(source)) == 1280
    assert sum(length for _, length in Ranges.fetched) < size / 3
    assert max(length for _, length in Ranges.fetched) <= (1 << 16) + (1 << 18), "a range is a block and what was asked for"


def test_footers_are_fetched_once(ranges: str) -> None:
    source = opened("parquet", ranges)
    iter(source)
    footers = len(Ranges.fetched)
    assert footers == 3
    assert len(texts(source)) == len(texts(source)) == 12
    assert {path for path, _ in Ranges.fetched} == {"/bucket/000.parquet", "/bucket/001.parquet", "/bucket/sub/000.parquet"}
    assert len(Ranges.fetched) == footers + 2 * 3, "small files are one range each: the third request is a footer read again"


@pytest.mark.parametrize(("kind", "where"), [("parquet", " row "), ("jsonl", " after line 0"), ("text", "")])
def test_a_store_that_stops_answering_names_file_and_place(tmp_path: Path, ranges: str, kind: str, where: str) -> None:
    write_wide(tmp_path / "wide.parquet")
    source = opened(kind, f"{ranges}/wide" if kind == "parquet" else ranges)
    iterator = iter(source)
    if kind == "parquet":
        next(iterator)
    Ranges.patience = 0
    with pytest.raises(DocumentError) as error:
        list(iterator)
    message = one_line(error)
    assert where in message and "cannot be reached (ConnectionResetError: the peer is gone)" in message
    assert message.startswith("ranges:///bucket/") and message.endswith("check network and credentials, and run the same command again")


def test_an_identity_that_cannot_be_read_names_the_file(ranges: str) -> None:
    source = opened("text", ranges)
    Ranges.patience = 1
    with pytest.raises(DocumentError, match=r"ranges:///bucket/001\.txt: the file \(3 bytes\) cannot be reached"):
        source.identity()


class RangeHandler(SimpleHTTPRequestHandler):
    """A static file server that gives ranges, as every object store's web address does."""

    def log_message(self, *arguments: Any) -> None:
        pass

    def send_head(self) -> Any:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        wanted = self.headers.get("Range")
        if wanted and self.server.gives_ranges:  # type: ignore[attr-defined]
            first, last = wanted.removeprefix("bytes=").split("-")
            part = data[int(first) : int(last or len(data)) + 1]
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}")
            data = part
        else:
            self.send_response(200)
        if self.server.gives_ranges:  # type: ignore[attr-defined]
            self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
        return None


@pytest.fixture
def web(tmp_path: Path) -> Iterator[ThreadingHTTPServer]:
    """A server of the files in `here`."""
    pytest.importorskip("aiohttp", reason="web addresses need aiohttp: pip install aiohttp")
    folder = str(write_everything(tmp_path / "here"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *arguments: RangeHandler(*arguments, directory=folder))
    server.gives_ranges = True  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("kind", "name"), [("parquet", "000.parquet"), ("jsonl", "sub/000.jsonl.zst"), ("text", "001.txt")])
def test_a_file_on_the_web_is_read_and_its_signature_is_not_shown(tmp_path: Path, web: Any, kind: str, name: str) -> None:
    address = f"http://127.0.0.1:{web.server_port}/{name}"
    same_as_here(kind, f"{tmp_path}/here/{name}", address)
    signed = opened(kind, f"{address}?signature=secret")
    assert all("secret" not in document.origin for document in signed)
    assert signed.identity() == opened(kind, address).identity()


def test_two_addresses_that_differ_in_their_query_are_two_files(web: Any) -> None:
    address = f"http://127.0.0.1:{web.server_port}/001.txt"
    assert texts(opened("text", f"{address}?part=1", f"{address}?part=2", f"{address}?part=1")) == ["001", "001"]


def test_a_server_without_ranges_is_enough_for_what_is_read_in_order(tmp_path: Path, web: Any) -> None:
    web.gives_ranges = False
    fineweb(tmp_path / "here/large.parquet", ["x" * 1000] * 200, compression="none", use_dictionary=False)
    address = f"http://127.0.0.1:{web.server_port}"
    assert texts(opened("jsonl", f"{address}/000.jsonl.gz"))[0] == "000 first"
    with pytest.raises(DocumentError) as error:
        iter(opened("parquet", f"{address}/large.parquet"))
    assert "large.parquet: the file (" in one_line(error) and "support range requests" in one_line(error)


def test_a_web_address_that_gives_nothing_says_why(web: Any) -> None:
    with pytest.raises(DocumentError, match=r"missing\.txt: nothing is there, or nothing answers \(404"):
        opened("text", f"http://127.0.0.1:{web.server_port}/missing.txt")
    with pytest.raises(DocumentError, match=r"nothing answers \(.*Connect call failed"):
        opened("text", "http://127.0.0.1:9/a.txt")


# --- a real S3 protocol ---


@pytest.fixture
def bucket(s3_bucket: Any, tmp_path: Path) -> Iterator[str]:
    """The URL of a folder in a bucket that holds a copy of `write_everything`."""
    forget_clients()
    folder = write_everything(tmp_path / "here")
    for path in folder.rglob("*.*"):
        if path.is_file():
            s3_bucket.client.upload_file(str(path), s3_bucket.name, f"crawl/{path.relative_to(folder)}")
    yield f"{s3_bucket.url}/crawl"
    forget_clients()


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "text"])
@pytest.mark.parametrize("entry", ["", "/sub/*"])
def test_a_bucket_of_s3_is_read_as_the_folder_it_was_copied_from(tmp_path: Path, bucket: str, kind: str, entry: str) -> None:
    same_as_here(kind, f"{tmp_path}/here{entry}", f"{bucket}{entry}")


def test_what_s3_refuses_is_one_line(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(entry: str) -> str:
        with pytest.raises(DocumentError) as error:
            opened("parquet", entry)
        assert one_line(error).startswith(f"documents.files={entry}: ")
        return one_line(error)

    assert "the bucket does not exist" in refused("s3://no-such-bucket/crawl")
    assert "nothing is there" in refused(f"{bucket}/nothing")
    assert "gives no .parquet file" in refused(f"{bucket}/*.pq")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    forget_clients()
    assert "no credentials (Unable to locate credentials); set AWS_ACCESS_KEY_ID" in refused(bucket)


def test_a_file_that_is_gone_when_its_turn_comes_is_named(bucket: str, s3_bucket: Any) -> None:
    source = opened("text", bucket)
    s3_bucket.client.delete_object(Bucket=s3_bucket.name, Key="crawl/001.txt")
    with pytest.raises(DocumentError, match=r"crawl/001\.txt: the file \(3 bytes\) cannot be reached \(FileNotFoundError"):
        texts(source)


def test_an_identity_over_s3_is_json(bucket: str) -> None:
    identity = opened("parquet", bucket).identity()
    assert json.loads(json.dumps(identity)) == identity
    assert [file["name"] for file in identity["files"]] == ["000.parquet", "001.parquet", "sub/000.parquet"]
