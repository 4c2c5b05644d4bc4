"""An S3 server for tests, real down to the protocol: moto on the loopback, in a process of its own, with a fresh bucket a test."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()  # until whoever started this ends, however it ends
"""
IN_THE_WAY = ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")


@dataclass(frozen=True)
class Bucket:
    """A bucket; `environment` is what fsspec, s3fs and botocore need to reach it, in this process or another."""

    name: str
    environment: dict[str, str]
    client: Any = field(repr=False)

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def keys(self) -> list[str]:
        """What the server has, whatever a client believes."""
        return [found["Key"] for found in self.client.list_objects_v2(Bucket=self.name).get("Contents", [])]

    def open_uploads(self) -> list[str]:
        """Keys of multipart uploads that were neither completed nor aborted."""
        return [found["Key"] for found in self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", [])]


@dataclass(frozen=True)
class Server:
    """A running server: the environment to reach it, and a client of boto3's beside the ones under test."""

    environment: dict[str, str]
    client: Any = field(repr=False)

    def bucket(self) -> Bucket:
        bucket = Bucket(f"bucket-{uuid.uuid4().hex[:12]}", self.environment, self.client)
        self.client.create_bucket(Bucket=bucket.name)
        return bucket


def forget_clients() -> None:
    """Let s3fs read its environment anew: it keeps its clients as long as a process lives."""
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[Server]:
    """A server for the session; tests are skipped where moto or s3fs is missing."""
    boto3 = pytest.importorskip("boto3", reason="needs moto[server,s3], of the extra 'dev'")
    pytest.importorskip("moto", reason="needs moto[server,s3], of the extra 'dev'")
    pytest.importorskip("s3fs", reason="needs s3fs, of the extra 's3'")
    forget_clients()
    with subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        endpoint = server.stdout.readline().strip()
        login = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        yield Server(environment_of(endpoint), boto3.client("s3", endpoint_url=endpoint, **login))
        server.stdin.close()


def environment_of(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture
def s3_bucket(s3_server, monkeypatch) -> Bucket:
    """A fresh bucket, with the environment set to reach it. A test that changes the environment calls `forget_clients` at its end too."""
    for variable in IN_THE_WAY:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in s3_server.environment.items():
        monkeypatch.setenv(variable, value)
    return s3_server.bucket()
