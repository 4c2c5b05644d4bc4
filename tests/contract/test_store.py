"""A store keeps files whole or not at all: in a folder, in memory, on a real S3 server; after faults, Ctrl-C, a wrong byte."""

import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pipeline.contract import atomic_io
from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_bytes
from pipeline.contract.store import LocalStore, open_store

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def local_file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "built"
    path.write_bytes(data)
    return path


def test_what_is_written_is_read_and_replaced(store):
    store.write_bytes("deep/er/file", b"older")
    store.write_bytes("deep/er/file", b"newer\0")
    assert store.read_bytes("deep/er/file") == b"newer\0"
    assert store.size("deep/er/file") == 6
    assert store.hash("deep/er/file") == hash_bytes(b"newer\0")
    assert store.names() == ["deep/er/file"]
    store.remove("deep/er/file")
    assert store.size("deep/er/file") is None
    assert store.names() == []


def test_an_empty_file_is_a_file(store):
    store.write_bytes("empty", b"")
    assert (store.size("empty"), store.read_bytes("empty"), store.hash("empty")) == (0, b"", hash_bytes(b""))
    assert store.names() == ["empty"]


def test_json_has_the_bytes_of_atomic_io(store, tmp_path):
    value = {"z": 1, "ä": ["–", None, 0.1], "nested": {}}
    atomic_io.write_json(tmp_path / "value.json", value)
    store.write_json("value.json", value)
    assert store.read_bytes("value.json") == (tmp_path / "value.json").read_bytes()


@pytest.mark.parametrize("missing", ["nothing", "a", "a/file/below"])
def test_what_is_not_there_is_not_there_on_any_backend(store, missing):
    store.write_bytes("a/file", b"1")
    for read in (store.read_bytes, store.hash, lambda name: store.fetch(name, 1)):
        with pytest.raises(FileNotFoundError):
            read(missing)
    assert store.size(missing) is None
    assert store.names("nothing") == store.names("a/file") == []


def test_what_is_not_there_can_be_removed(store):
    store.remove("nothing")
    store.remove("nothing/below")


def test_creation_is_exclusive(store):
    assert store.create("deep/lease", b"mine")
    assert not store.create("deep/lease", b"yours")
    assert store.read_bytes("deep/lease") == b"mine"
    store.remove("deep/lease")
    assert store.create("deep/lease", b"yours")
    assert store.names() == ["deep/lease"]


def test_one_of_many_creates_a_local_file(tmp_path):
    store, won = LocalStore(tmp_path), []
    threads = [threading.Thread(target=lambda i=i: won.append(store.create("lease", b"%d" % i))) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == [False] * 15 + [True]


def test_creation_where_the_disk_has_no_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = LocalStore(tmp_path)
    assert store.create("lease", b"mine")
    assert not store.create("lease", b"yours")
    assert store.read_bytes("lease") == b"mine"
    assert store.names() == ["lease"]


@pytest.mark.parametrize("code", ["PreconditionFailed", "ConditionalRequestConflict", "NotImplemented"])
def test_creation_on_a_server_with_answers_of_its_own(s3, monkeypatch, backend, code):
    """Some say that the name is taken without s3fs knowing it, some know no conditions."""
    from botocore.exceptions import ClientError

    put = backend(s3).pipe_file

    def pipe_file(path, data, mode="overwrite"):
        if mode == "create":
            raise OSError(22, "no") from ClientError({"Error": {"Code": code}}, "PutObject")
        put(path, data)

    monkeypatch.setattr(backend(s3), "pipe_file", pipe_file)
    assert s3.create("lease", b"mine") is (code == "NotImplemented")
    assert s3.names() == (["lease"] if code == "NotImplemented" else [])


def test_a_put_moves_a_complete_file(store, tmp_path):
    data = os.urandom(100_000)
    local = local_file(tmp_path, data)
    store.put(local, "shards/payload")
    assert not local.exists()
    assert store.size("shards/payload") == 100_000
    assert store.hash("shards/payload") == hash_bytes(data)
    assert store.names() == ["shards/payload"]


def test_scratch_becomes_a_file_by_a_put(store):
    with store.scratch("shards/payload") as path:
        path.write_bytes(b"whole")
        assert store.names() == []
        assert path.name.endswith("payload")
        store.put(path, "shards/payload-hash")
    assert store.names() == ["shards/payload-hash"]
    assert not path.exists()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_scratch_that_raises_leaves_nothing(store, error):
    with pytest.raises(error), store.scratch("payload") as path:
        path.write_bytes(b"half")
        raise error
    assert not path.exists()
    assert store.names() == []


def test_a_local_scratch_is_beside_its_destination(tmp_path):
    with LocalStore(tmp_path).scratch("shards/payload") as path:
        assert path.parent == tmp_path / "shards"
        assert path.name.startswith(atomic_io.TEMPORARY_PREFIX)


def test_a_local_put_from_another_disk_is_a_copy(tmp_path, monkeypatch):
    local, rename = local_file(tmp_path, b"whole"), Path.rename

    def within_a_folder(self, target):
        if self.parent != Path(target).parent:
            raise OSError(18, "Invalid cross-device link")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", within_a_folder)
    store = LocalStore(tmp_path / "store")
    store.put(local, "payload")
    assert (store.read_bytes("payload"), local.exists(), store.names()) == (b"whole", False, ["payload"])


def test_names_are_relative_to_the_store_and_sorted(store):
    for name in ("shards/b.json", "shards/a.json", "manifest.json", "shards-of-another/a"):
        store.write_bytes(name, b"1")
    assert store.names() == ["manifest.json", "shards-of-another/a", "shards/a.json", "shards/b.json"]
    assert store.names("shards") == ["shards/a.json", "shards/b.json"]
    assert (store / "shards").names() == ["a.json", "b.json"]
    assert (store / "shards").read_bytes("a.json") == b"1"


def test_local_temporaries_are_not_listed(tmp_path):
    (tmp_path / ".tmp-folder").mkdir()
    for name in ("file", ".tmp-half", ".tmp-folder/half"):
        (tmp_path / name).write_bytes(b"1")
    assert LocalStore(tmp_path).names() == ["file"]


def test_what_another_wrote_is_seen_at_once(s3, s3_bucket):
    s3.write_bytes("first", b"1")
    assert s3.names() == ["first"]
    assert s3.size("second") is None
    s3_bucket.client.put_object(Bucket=s3_bucket.name, Key="store/second", Body=b"22")
    assert (s3.names(), s3.size("second")) == (["first", "second"], 2)
    s3_bucket.client.put_object(Bucket=s3_bucket.name, Key="store/second", Body=b"333")
    assert (s3.size("second"), s3.read_bytes("second")) == (3, b"333")
    s3_bucket.client.delete_object(Bucket=s3_bucket.name, Key="store/first")
    assert (s3.names(), s3.size("first")) == (["second"], None)


def test_a_store_is_named_by_its_location(store):
    assert str(store / "caches" / "installed-docs") == f"{store}/caches/installed-docs"
    assert (store / "caches/installed-docs/").name == "installed-docs"
    assert pickle.loads(pickle.dumps(store)) == store == open_store(str(store)) == open_store(f"{store}/")
    if store.is_local:
        assert (store / "caches").path == Path(f"{store}/caches")
    else:
        with pytest.raises(PipelineError, match="not a folder on this machine"):
            assert store.path


def test_a_file_url_is_a_folder(tmp_path):
    assert open_store(f"file://{tmp_path}") == open_store(str(tmp_path)) == open_store(tmp_path) == LocalStore(tmp_path)


def test_a_fetched_file_is_local(store):
    store.write_bytes("payload", b"whole")
    path = store.fetch("payload", 5)
    assert path.read_bytes() == b"whole"
    assert store.is_local is (path == Path(f"{store}/payload"))
    with pytest.raises(PipelineError, match="has 5 bytes, 6 were written"):
        store.fetch("payload", 6)


def test_a_forked_worker_reads_too(s3):
    """As the workers of torch's DataLoader do; fsspec's connections do not survive a fork, so a store holds none."""
    s3.write_bytes("file", b"content")
    worker = os.fork()
    if worker == 0:
        os._exit(0 if s3.read_bytes("file") == b"content" else 1)
    assert os.waitpid(worker, 0)[1] == 0


LIGHT = """
import sys
from pipeline.contract.store import open_store
store = open_store(sys.argv[1])
store.write_json("a", 1), store.read_bytes("a"), store.names(), store.fetch("a", 2), store.hash("a"), store.create("b", b"")
print([name for name in ("torch", "fsspec", "s3fs", "numpy", "pyarrow", "aiohttp") if name in sys.modules])
"""


def test_a_local_store_imports_next_to_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", LIGHT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr
