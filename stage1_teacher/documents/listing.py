"""What lies below a folder, what each file of it is called, and in which order they are read."""

import glob
import os
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.source_file import SourceFile


def fixed_part(pattern: str) -> str:
    """The folder above the first part with a wildcard; above the last part, if none has one."""
    parts = pattern.split("/")
    magic = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return "/".join(parts[:magic])


def files_below(folder: str) -> Iterator[str]:
    """Paths of all files in the folder and below, hidden folders left out.

    Raises:
        DocumentError: for a folder that cannot be listed: its documents would be missing without a word.
    """
    for below, folders, files in os.walk(folder, onerror=_unlistable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(below, name) for name in files)


def named(root: str, sizes: Mapping[str, int | None], suffixes: tuple[str, ...], store: Any = None) -> list[SourceFile]:
    """Files with one of the suffixes, sorted by their name below `root`; `sizes` has their paths and what a store told.

    Hidden ones (downloads under way, macOS doubles) are left out.
    """
    paths = {path.removeprefix(root).lstrip("/"): path for path in sizes if path.lower().endswith(suffixes)}
    shown = sorted(name for name in paths if not (name.startswith(".") or "/." in name))
    return [SourceFile(paths[name], name, store, sizes[paths[name]]) for name in shown]


def _unlistable(error: OSError) -> NoReturn:
    raise DocumentError(f"{error.filename}: cannot be listed ({error.strerror}); make it readable, or name the files") from None
