"""Files of documents behind any URL that fsspec knows: s3://, gs://, https://, hf:// and so on.

Credentials and endpoints are those of the store's own client, from the environment or its configuration files.
"""

import glob
from typing import Any

from pipeline.contract.errors import DocumentError, PipelineError
from pipeline.contract.remote.errors import backend_errors
from stage1_teacher.documents.base import reason
from stage1_teacher.documents.listing import fixed_part, named
from stage1_teacher.documents.source_file import SourceFile

WEB = ("http://", "https://")


def remote_files(url: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """A file, or a folder or glob listed afresh, with the sizes that the listing tells.

    Raises:
        DocumentError: for what is not there, a client that is not installed, missing credentials, no network.
    """
    try:
        with backend_errors(url):
            from fsspec.core import url_to_fs

            store, path = url_to_fs(url)
            store.invalidate_cache()
            return _expand(store, path, suffixes)
    except FileNotFoundError as error:
        raise DocumentError(
            f"documents.files={url}: nothing is there, or nothing answers ({reason(_first_cause(error))}); check the address, "
            "or --set documents.files=PATH (a file, folder, glob or URL)"
        ) from None
    except PipelineError as error:
        raise DocumentError(f"documents.files={error}") from None
    except Exception as error:  # a client that nobody has met yet
        raise DocumentError(
            f"documents.files={url}: cannot be listed ({type(error).__name__}: {reason(error)}); "
            "check the address, network and credentials, or download the files and --set documents.files=PATH"
        ) from None


def _expand(store: Any, path: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    """As for local entries: a file of this very name, a folder, a pattern."""
    try:
        found = store.info(path)
    except FileNotFoundError:
        if not glob.has_magic(path):
            raise
        return named(fixed_part(path), _sizes(store.glob(path, detail=True)), suffixes, store)
    if found["type"] == "directory":
        return named(path.rstrip("/"), _sizes(store.find(path, detail=True)), suffixes, store)
    name = (path.partition("?")[0] if path.startswith(WEB) else path).rpartition("/")[2]
    return [SourceFile(path, name, store, found.get("size"))]


def _sizes(listing: dict[str, Any]) -> dict[str, int | None]:
    return {path: found.get("size") for path, found in listing.items() if found["type"] != "directory"}


def _first_cause(error: BaseException) -> BaseException:
    return _first_cause(error.__cause__) if error.__cause__ else error
