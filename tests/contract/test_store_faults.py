"""What a store does about faults: a broken upload, Ctrl-C, kill -9, a wrong byte; and what a user reads when a backend refuses."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from s3_server import forget_clients

from pipeline.contract.errors import PipelineError
from pipeline.contract.hashing import hash_bytes
from pipeline.contract.store import open_store

ROOT = Path(__file__).parents[2]
MIB = 1 << 20


def local_file(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "built"
    path.write_bytes(data)
    return path


def with_each_part(monkeypatch, meddle) -> None:
    """Call `meddle(part number, bytes)` for the bytes to send instead, wherever a part of a multipart upload is sent."""
    from s3fs import S3FileSystem

    call = S3FileSystem.call_s3

    def call_s3(fs, method, *arguments, **keywords):
        if method == "upload_part":
            keywords["Body"] = meddle(keywords["PartNumber"], keywords["Body"])
        return call(fs, method, *arguments, **keywords)

    monkeypatch.setattr(S3FileSystem, "call_s3", call_s3)


def test_a_large_file_goes_up_in_parts(s3, s3_bucket, tmp_path, monkeypatch):
    sent = []
    with_each_part(monkeypatch, lambda number, part: sent.append((number, len(part))) or part)
    data = os.urandom(12 * MIB)
    s3.put(local_file(tmp_path, data), "payload")
    assert sent == [(1, 5 * MIB), (2, 5 * MIB), (3, 2 * MIB)]
    assert s3.hash("payload") == hash_bytes(data)
    assert s3_bucket.open_uploads() == []


@pytest.mark.filterwarnings("error")  # of the garbage collector, which closes files
@pytest.mark.parametrize("error", [RuntimeError, MemoryError, ConnectionResetError])
def test_a_put_that_fails_in_the_middle_leaves_what_was_there(s3, s3_bucket, tmp_path, monkeypatch, error):
    s3.write_bytes("payload", b"older")

    def fail_in_the_second(number, part):
        if number == 1:
            return part
        assert s3_bucket.open_uploads() == ["store/payload"]
        raise error("broken")

    with_each_part(monkeypatch, fail_in_the_second)
    local = local_file(tmp_path, bytes(12 * MIB))
    with pytest.raises(PipelineError if error is ConnectionResetError else error, match="broken"):
        s3.put(local, "payload")
    assert s3_bucket.keys() == ["store/payload"]
    assert s3_bucket.open_uploads() == []
    assert s3.read_bytes("payload") == b"older"
    assert local.stat().st_size == 12 * MIB


def test_control_c_in_an_upload_aborts_it(s3, s3_bucket, tmp_path, monkeypatch):
    sent = []

    def press_control_c(number, part):
        sent.append(number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        return part

    with_each_part(monkeypatch, press_control_c)
    local = local_file(tmp_path, bytes(20 * MIB))
    with pytest.raises(KeyboardInterrupt):
        s3.put(local, "payload")
    assert 1 <= len(sent) < 4  # of four parts; a busy machine may send one more before it hears of it
    assert (s3_bucket.keys(), s3_bucket.open_uploads()) == ([], [])
    assert local.exists()


def damage_what_arrives(monkeypatch, fs, damage) -> None:
    put = fs.pipe_file
    monkeypatch.setattr(fs, "pipe_file", lambda path, data: put(path, damage(bytes(data))))


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data[:-1] + b"?", lambda data: b""])
@pytest.mark.parametrize("store", ["memory", "s3"], indirect=True)
def test_what_arrives_otherwise_is_noticed_and_removed(store, tmp_path, monkeypatch, backend, damage):
    damage_what_arrives(monkeypatch, backend(store), damage)
    local = local_file(tmp_path, b"content")
    with pytest.raises(PipelineError, match="did not arrive whole and was removed") as caught:
        store.put(local, "payload")
    assert "\n" not in str(caught.value)
    assert store.names() == []
    assert local.read_bytes() == b"content"
    with pytest.raises(PipelineError, match="does not read back as it was written"):
        store.write_bytes("sidecar", b"content")


def test_of_two_writers_the_last_one_wins(s3, monkeypatch, backend):
    """Another writer comes between a put and its check: that is no damage."""
    put, written = backend(s3).pipe_file, []

    def another_comes_after(path, data):
        put(path, data)
        if not written:
            put(path, b"another's")
        written.append(data)

    monkeypatch.setattr(backend(s3), "pipe_file", another_comes_after)
    s3.write_bytes("sidecar", b"mine")
    assert (s3.read_bytes("sidecar"), written) == (b"mine", [b"mine", b"mine"])


def test_a_damaged_part_is_noticed(s3, s3_bucket, tmp_path, monkeypatch):
    with_each_part(monkeypatch, lambda number, part: part if number == 1 else part[:-1] + b"?")
    with pytest.raises(PipelineError, match="did not arrive whole and was removed"):
        s3.put(local_file(tmp_path, bytes(12 * MIB)), "payload")
    assert (s3_bucket.keys(), s3_bucket.open_uploads()) == ([], [])


# What is the user's to mend, in one line


def complaint(action, *arguments) -> str:
    with pytest.raises(PipelineError) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


OPERATIONS = [
    lambda store: store.read_bytes("file"),
    lambda store: store.write_bytes("file", b"1"),
    lambda store: store.create("file", b"1"),
    lambda store: store.size("file"),
    lambda store: store.hash("file"),
    lambda store: store.names(),
    lambda store: store.remove("file"),
    lambda store: store.fetch("file", 1),
]


def test_an_upload_that_another_has_aborted_is_not_a_missing_file(s3, tmp_path, monkeypatch):
    from botocore.exceptions import ClientError

    def aborted(number, part):
        raise FileNotFoundError("no such upload") from ClientError({"Error": {"Code": "NoSuchUpload"}}, "UploadPart")

    with_each_part(monkeypatch, aborted)
    local = local_file(tmp_path, bytes(12 * MIB))
    assert "the store refused (no such upload); mend" in complaint(s3.put, local, "payload")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_missing_bucket(s3_bucket, tmp_path, monkeypatch, operation):
    monkeypatch.setenv("PIPELINE_STAGING", str(tmp_path))
    line = complaint(operation, open_store("s3://no-such-bucket/folder"))
    assert line.startswith("s3://no-such-bucket/folder")
    assert "the bucket does not exist; create it" in line


@pytest.mark.parametrize("operation", OPERATIONS)
def test_no_access(s3, monkeypatch, operation):
    from s3fs import S3FileSystem

    async def forbidden(*_, **__):
        raise PermissionError("Forbidden")

    monkeypatch.setattr(S3FileSystem, "_call_s3", forbidden)
    assert "access denied (Forbidden); check the credentials" in complaint(operation, s3)


UNREACHABLE = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"}
NO_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": None,
    "AWS_SECRET_ACCESS_KEY": None,
    "AWS_SHARED_CREDENTIALS_FILE": "/none",
    "AWS_CONFIG_FILE": "/none",
}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (UNREACHABLE, "the endpoint cannot be reached (Could not connect to the endpoint URL"),
        (NO_CREDENTIALS, "no credentials (Unable to locate credentials); set AWS_ACCESS_KEY_ID"),
        ({"AWS_PROFILE": "nobody"}, "no credentials (The config profile (nobody) could not be found)"),
    ],
)
def test_an_environment_that_leads_nowhere(s3, monkeypatch, environment, said):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value) if value else monkeypatch.delenv(variable)
    forget_clients()
    for operation in OPERATIONS:
        assert said in complaint(operation, s3)
    forget_clients()


def test_a_bucket_name_that_cannot_be(s3_bucket):
    assert "Invalid bucket name" in complaint(open_store("s3://no bucket/folder").write_bytes, "file", b"1")


@pytest.mark.parametrize(("url", "package"), [("s3://b/f", "'block-stack-distillation[s3]'"), ("gs://b/f", "gcsfs")])
def test_a_protocol_whose_package_is_missing(monkeypatch, url, package):
    from fsspec.registry import _registry

    protocol = url.split(":")[0]
    monkeypatch.delitem(_registry, protocol, raising=False)
    monkeypatch.setitem(sys.modules, {"s3": "s3fs", "gs": "gcsfs"}[protocol], None)
    line = complaint(open_store(url).names)
    assert line.startswith(f"{url}: ")
    assert f"pip install {package}" in line


def test_a_url_that_says_nothing():
    assert "names no bucket or folder; give s3://BUCKET/FOLDER" in complaint(open_store, "s3://")
    assert "fsspec knows no such protocol" in complaint(open_store("s4://bucket/folder").names)


def test_a_bug_keeps_its_traceback(s3, monkeypatch):
    from s3fs import S3FileSystem

    async def bug(*_, **__):
        raise AttributeError("bug")

    monkeypatch.setattr(S3FileSystem, "_call_s3", bug)
    with pytest.raises(AttributeError):
        s3.names()


KILLED_IN_A_PUT = """
import sys, time
from pathlib import Path
from s3fs import S3FileSystem
from pipeline.contract.remote import upload
from pipeline.contract.store import open_store
upload.PART_BYTES = 5 << 20
call = S3FileSystem.call_s3
def call_s3(fs, method, *arguments, **keywords):
    if method == "upload_part" and keywords["PartNumber"] == 2:
        print("half", flush=True)
        time.sleep(600)
    return call(fs, method, *arguments, **keywords)
S3FileSystem.call_s3 = call_s3
open_store(sys.argv[1]).put(Path(sys.argv[2]), "payload")
"""


def test_a_put_after_kill_9_in_a_put(s3, s3_bucket, tmp_path):
    """The dead leave parts that only a rule of the bucket removes; nothing is listed, and the next put is whole."""
    local = local_file(tmp_path, os.urandom(12 * MIB))
    digest = hash_bytes(local.read_bytes())
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_IN_A_PUT, str(s3), str(local)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout.readline() == "half\n"
        child.kill()
    assert (s3.names(), s3_bucket.open_uploads()) == ([], ["store/payload"])
    s3.put(local, "payload")
    assert s3.hash("payload") == digest
