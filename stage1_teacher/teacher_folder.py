"""`<cache>/teacher/`: embedding, head, final norm, config and tokenizer; the training pool never sees the teacher's weights."""

import json
import time
from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from pipeline.contract.logit_cache.index import TEACHER, FileRecord
from pipeline.contract.sealed import Damaged, read_sealed, write_sealed
from pipeline.contract.store import Store
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.leases import Leases

FOLDER, INTERFACE = "teacher", "interface.safetensors"
WAIT_SECONDS = 0.5


def ensure_teacher_folder(cache: Store, leases: Leases, engine: Callable[[], TeacherEngine], tokenizer: Any) -> int:
    """Have the folder whole, written by this worker if no other is about to; returns the rows of the teacher's head."""
    while (whole := whole_teacher(cache)) is None:
        if leases.take(FOLDER):
            try:
                publish_teacher_folder(cache, engine(), tokenizer)
            finally:
                leases.drop(FOLDER)
        else:
            time.sleep(WAIT_SECONDS)
    return whole[1]


def publish_teacher_folder(cache: Store, engine: TeacherEngine, tokenizer: Any) -> list[FileRecord]:
    """Write every file, then the record of their hashes, which makes them count."""
    from safetensors.torch import save_file

    interface = engine.interface()
    with cache.scratch(f"{FOLDER}/all") as folder:
        folder.mkdir()
        save_file(interface.tensors, folder / INTERFACE)
        (folder / "config.json").write_text(json.dumps(interface.config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(folder)
        records = [FileRecord.of(path, f"{FOLDER}/{path.name}") for path in sorted(folder.iterdir())]
        for record in records:
            cache.put(folder / record.name.removeprefix(f"{FOLDER}/"), record.name)
    write_sealed(cache, TEACHER, {"vocab_size": engine.vocab_size, "files": [record.model_dump() for record in records]})
    return records


def recorded_teacher(cache: Store) -> tuple[list[FileRecord], int] | None:
    """The files of the folder and the rows of its head, None where there is no record."""
    try:
        value = read_sealed(cache, TEACHER)
        return [FileRecord.model_validate(record) for record in value["files"]], int(value["vocab_size"])
    except (FileNotFoundError, Damaged, ValidationError, KeyError):
        return None


def whole_teacher(cache: Store) -> tuple[list[FileRecord], int] | None:
    """The same for a folder that is whole, None when it has to be written (again)."""
    recorded = recorded_teacher(cache)
    return None if recorded is None or any(record.problem(cache) for record in recorded[0]) else recorded
