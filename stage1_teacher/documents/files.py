"""From `documents.files` to a list of files whose order and names are the same on every machine, listed once.

Order: entries as given, each entry's files sorted by their name below its fixed part. Names are relative to that part, so
that a hub entry, the folder it was downloaded to and the bucket it was copied to have the same ones.
"""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.contract.errors import DocumentError
from stage1_teacher.documents.hub import HUB, hub_files
from stage1_teacher.documents.listing import files_below, fixed_part, named
from stage1_teacher.documents.remote import remote_files
from stage1_teacher.documents.source_file import SourceFile


def resolve_files(entries: Sequence[str], suffixes: tuple[str, ...]) -> list[SourceFile]:
    """Expand files, folders (recursively), globs, URLs and hub entries; folders and patterns give files with `suffixes` only.

    No file is opened, and each folder is listed once.

    Raises:
        DocumentError: for no entry at all, an entry that gives no file, or what can neither be listed nor fetched.
    """
    if not entries:
        raise DocumentError("documents.files=[]: this source reads files; --set documents.files=PATH (a file, folder, glob or URL)")
    found: dict[tuple[Any, str], SourceFile] = {}
    for entry in entries:
        files = _expand(entry, suffixes)
        if not files:
            raise DocumentError(
                f"documents.files={entry}: gives no {' or '.join(suffixes)} file; "
                "check the path, or --set documents.files=PATH (a file, folder, glob or URL)"
            )
        for file in files:
            found.setdefault((file.store, os.path.abspath(file.path) if file.store is None else file.path), file)
    return list(found.values())


def _expand(entry: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    if entry.startswith(HUB):
        return hub_files(entry, suffixes)
    entry = entry.removeprefix("file://")
    if "://" in entry:
        return remote_files(entry, suffixes)
    return _local_files(str(Path(entry).expanduser()), suffixes)


def _local_files(entry: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    if os.path.isfile(entry):
        return [SourceFile(entry, os.path.basename(entry))]
    if os.path.isdir(entry):
        return named(entry, dict.fromkeys(files_below(entry)), suffixes)
    matches = [match for match in glob.iglob(entry, recursive=True) if not os.path.isdir(match)]
    return named(fixed_part(entry), dict.fromkeys(matches), suffixes)
