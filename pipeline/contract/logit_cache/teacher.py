"""The cached teacher's folder, on this machine: what a student takes from its teacher."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pipeline.contract.atomic_io import atomic_path
from pipeline.contract.hashing import hash_file, hash_json
from pipeline.contract.logit_cache.index import FileRecord
from pipeline.contract.store import Store


def local_teacher(cache: Store, files: Sequence[FileRecord]) -> Path:
    """The folder itself, or a copy of a remote one, kept between runs.

    Raises:
        FileNotFoundError: a file of it is not there.
    """
    if cache.is_local:
        return cache.path / "teacher"
    folder = Path(tempfile.gettempdir()) / f"pipeline-teacher-{hash_json([file.model_dump() for file in files])[:16]}"
    for file in files:
        copy = folder / Path(file.name).name
        if not (copy.is_file() and hash_file(copy) == file.xxh3_128):
            with atomic_path(copy) as temporary:
                temporary.write_bytes(cache.read_bytes(file.name))
    return folder
