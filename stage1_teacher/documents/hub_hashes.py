"""The sha256 that the hub's own bookkeeping holds for a downloaded file: 16 GB need not be read to be known.

Large files are identified on the hub by their sha256. In its cache, a snapshot's entry is a link to blobs/SHA256; beside
files from `hf download --local-dir DIR`, DIR/.cache/huggingface/download/NAME.metadata holds commit, SHA256 and the time
of writing, a line each. Small files have a git hash of 40 digits in its place, and have to be read.
"""

import os
import re
from pathlib import Path

SHA256 = re.compile("[0-9a-f]{64}")


def hub_sha256(path: str) -> str | None:
    """None for a file that did not come from the hub, is not large, or was changed since. Opens no file of documents."""
    return _of_cached(path) or _of_downloaded(Path(path).absolute())


def _of_cached(path: str) -> str | None:
    if not (os.path.islink(path) and os.path.isfile(path)):
        return None
    folder, blob = os.path.split(os.readlink(path))
    return blob if os.path.basename(folder) == "blobs" and SHA256.fullmatch(blob) else None


def _of_downloaded(path: Path) -> str | None:
    for folder in path.parents:
        record = folder / ".cache/huggingface/download" / f"{path.relative_to(folder).as_posix()}.metadata"
        if record.is_file():
            return _recorded(record, path)
    return None


def _recorded(record: Path, path: Path) -> str | None:
    """Read here and not by the hub library: its reader makes locks and folders beside the data, and needs them writable.

    A file that was replaced by an older one keeps an old time of modification, never an old time of change.
    """
    try:
        _, etag, written = record.read_text(encoding="utf-8").split()
        found = path.stat()
        changed = max(found.st_mtime, found.st_ctime) > float(written)
    except (OSError, ValueError):
        return None
    return etag if SHA256.fullmatch(etag) and not changed else None
