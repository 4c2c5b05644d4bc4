"""From `documents.files` to a list of local files whose order and names are the same on every machine.

Order: entries as given, each entry's files sorted by their name below its fixed part. Names are relative to that part, so
that a hub entry and the folder it was downloaded to identify the same documents.
"""

import fnmatch
import glob
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.contract.errors import DocumentError, NotThereYet
from pipeline.contract.hashing import hash_file

HUB = "hub:"
HUB_SECONDS = 5  # to hear from the hub at all; a machine without network should learn it fast


@dataclass(frozen=True)
class SourceFile:
    """A file of documents."""

    path: Path
    name: str  # relative, with '/': what identity() records in place of the path


def resolve_files(entries: Sequence[str], suffixes: tuple[str, ...]) -> list[SourceFile]:
    """Expand files, folders (recursively), globs and hub entries; folders and patterns give files with `suffixes` only.

    Raises:
        DocumentError: for no entry at all, an entry that gives no file, or a hub set that is neither here nor reachable.
    """
    if not entries:
        raise DocumentError("documents.files=[]: this source reads files; --set documents.files=PATH (a file, folder or glob)")
    found: dict[str, SourceFile] = {}
    for entry in entries:
        files = _from_hub(entry, suffixes) if entry.startswith(HUB) else _from_disk(entry, suffixes)
        if not files:
            raise DocumentError(
                f"documents.files={entry}: gives no {' or '.join(suffixes)} file; "
                "check the path with ls, or --set documents.files=PATH (a file, folder or glob)"
            )
        for file in files:
            found.setdefault(os.path.abspath(file.path), file)
    return list(found.values())


def identify_files(files: Iterable[SourceFile]) -> list[dict[str, Any]]:
    """Name, size and hash of each, in reading order.

    Raises:
        DocumentError: for a file that cannot be read.
    """
    try:
        return [{"name": file.name, "bytes": file.path.stat().st_size, "xxh3_128": hash_file(file.path)} for file in files]
    except OSError as error:
        raise DocumentError(f"{error.filename}: cannot be read ({error.strerror}); make it readable or fetch it again") from None


def _from_disk(entry: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    if "://" in entry:
        raise NotThereYet(f"documents.files={entry}: this version reads local files and hub:; download it and --set documents.files=PATH")
    path = Path(entry).expanduser()
    if path.is_file():
        return [SourceFile(path, path.name)]
    if path.is_dir():
        return _named(path, path.rglob("*"), suffixes)
    matches = [Path(match) for match in glob.glob(str(path), recursive=True)]
    return _named(_fixed_part(path), matches, suffixes)


def _fixed_part(pattern: Path) -> Path:
    """The folder above the first part with a wildcard."""
    parts = pattern.parts
    magic = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    return Path(*parts[:magic])


def _named(root: Path, paths: Iterable[Path], suffixes: tuple[str, ...]) -> list[SourceFile]:
    """Files with one of the suffixes, sorted by name; hidden ones (downloads under way, macOS doubles) are left out."""
    names = {path.relative_to(root): path for path in paths if path.name.lower().endswith(suffixes) and path.is_file()}
    shown = [SourceFile(path, name.as_posix()) for name, path in names.items() if not any(part.startswith(".") for part in name.parts)]
    return sorted(shown, key=lambda file: file.name)


def _from_hub(entry: str, suffixes: tuple[str, ...]) -> list[SourceFile]:
    kind, owner, name, pattern = ([*entry.removeprefix(HUB).split("/", 3), "", "", "", ""])[:4]
    if kind != "datasets" or not (owner and name and pattern):
        raise DocumentError(f"documents.files={entry}: write hub:datasets/OWNER/NAME/PATTERN, or give a local path")
    patterns = [pattern, f"{pattern.rstrip('/')}/*"]
    snapshot = _snapshot(f"{owner}/{name}", patterns)
    matches = [path for path in snapshot.rglob("*") if _matches(path.relative_to(snapshot).as_posix(), patterns)]
    return _named(_root_of(snapshot, pattern), matches, suffixes)


def _matches(name: str, patterns: list[str]) -> bool:
    """As the hub does it: '*' also crosses '/'."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _root_of(snapshot: Path, pattern: str) -> Path:
    folder = snapshot / pattern
    return folder if folder.is_dir() else _fixed_part(folder)


def _snapshot(dataset: str, patterns: list[str]) -> Path:
    """The set's folder in the local hub cache, completed over the network where there is one.

    Asking for the revision first, with a short timeout, spares a machine without network the long retries of a download.
    """
    reason: Exception | None = None
    try:
        from huggingface_hub import HfApi, snapshot_download

        try:
            revision = HfApi().repo_info(dataset, repo_type="dataset", timeout=HUB_SECONDS).sha
        except Exception as error:  # offline, no such set, gated; the client under the hub library changes (requests, httpx, httpx2)
            reason, revision = error, None
        folder = snapshot_download(
            dataset, repo_type="dataset", revision=revision, allow_patterns=patterns, local_files_only=revision is None
        )
    except Exception as error:
        raise _missing(dataset, patterns[0], reason or error) from None
    return Path(folder)


def _missing(dataset: str, pattern: str, error: Exception) -> DocumentError:
    reason = (str(error).strip().splitlines() or [""])[0]
    return DocumentError(
        f"dataset {dataset} ({pattern}): is not complete in the local hub cache, and the hub gave {type(error).__name__} ({reason[:120]}); "
        f"where there is network: hf download {dataset} --repo-type dataset --include '{pattern}', or --set documents.files=PATH"
    )
