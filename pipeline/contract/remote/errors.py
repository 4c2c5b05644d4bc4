"""A backend's errors as the one line that a user can act on. Anything else is a bug and passes with its traceback."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.contract.errors import PipelineError

_LIBRARIES = {"botocore", "aiobotocore", "aiohttp", "gcsfs", "google", "adlfs", "azure", "huggingface_hub", "requests", "urllib3"}
_PACKAGES = {
    "s3": "pip install 'block-stack-distillation[s3]'",
    "s3a": "pip install 'block-stack-distillation[s3]'",
    "gs": "pip install gcsfs",
    "gcs": "pip install gcsfs",
}
_CREDENTIALS = {
    "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "s3a": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "gs": "GOOGLE_APPLICATION_CREDENTIALS",
    "gcs": "GOOGLE_APPLICATION_CREDENTIALS",
}
_NOT_THE_FILE = ("NoSuchBucket", "NoSuchUpload")
_BROKEN = {"HTTPClientError", "ClientPayloadError", "IncompleteReadError"}
_UNREACHABLE = {"EndpointConnectionError", "ConnectionError", "ClientConnectionError", "TransportError"}


@contextmanager
def backend_errors(url: str) -> Iterator[None]:
    """Turn what a backend raises over `url` into one line. An error that names a file is of the local disk, and passes.

    Raises:
        FileNotFoundError: the file is not there.
        PipelineError: the bucket is not there; no credentials, no access, no connection, no package for the protocol.
    """
    try:
        yield
    except PipelineError:
        raise
    except Exception as error:
        if getattr(error, "filename", None) is not None:
            raise
        if isinstance(error, FileNotFoundError) and s3_code(error) not in _NOT_THE_FILE:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url) from error
        rule = _rule(url.partition("://")[0], error)
        if rule is None:
            raise
        raise PipelineError(f"{url}: {rule}") from error


def s3_code(error: BaseException) -> str:
    """The code in S3's answer, which s3fs keeps as the cause of the error it raises; empty for other errors."""
    answer = getattr(error.__cause__, "response", None)
    return answer.get("Error", {}).get("Code", "") if isinstance(answer, dict) else ""


def connection_broke(error: Exception) -> bool:
    """Whether a connection broke in the middle of an answer, so that asking again may help."""
    return isinstance(error, ConnectionError | TimeoutError) or bool(_BROKEN & _kinds(error))


def _kinds(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}


def _rule(protocol: str, error: Exception) -> str | None:
    """The rule that was broken and the next move; None for an error that is no backend's."""
    said = " ".join(str(error).split())
    if isinstance(error, ImportError):
        return f"{said}; run {_PACKAGES.get(protocol, 'pip install with the package named')}"
    if said.startswith("Protocol not known"):
        return "fsspec knows no such protocol; give a folder, or a URL such as s3://BUCKET/FOLDER"
    if s3_code(error) == "NoSuchBucket":
        return "the bucket does not exist; create it, or give the URL of another"
    if any(word in type(error).__name__ for word in ("Credential", "Profile", "Token", "SSO")):
        return f"no credentials ({said}); set {_CREDENTIALS.get(protocol, 'those that the backend asks for')}"
    if isinstance(error, PermissionError):
        return f"access denied ({said}); check the credentials and that they may list, read, write and delete there"
    if connection_broke(error) or _UNREACHABLE & _kinds(error):
        return f"the endpoint cannot be reached ({said}); check the network and the endpoint's URL, then run the same command again"
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _LIBRARIES:
        return f"the store refused ({said}); mend what it names, then run the same command again"
    return None
