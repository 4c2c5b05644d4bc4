"""`<cache>/teacher/`: embedding, head, final norm, config and tokenizer; the training pool never sees the teacher's weights."""

import json
from pathlib import Path
from typing import Any

from pipeline.contract.atomic_io import atomic_path, write_json
from pipeline.contract.logit_cache.index import FileRecord
from stage1_teacher.engines.base import TeacherEngine

INTERFACE = "interface.safetensors"
RECORDS = "teacher.json"


def publish_teacher_folder(cache: Path, engine: TeacherEngine, tokenizer: Any) -> list[FileRecord]:
    """Write the folder whole, then the record of its files' hashes."""
    from safetensors.torch import save_file

    interface = engine.interface()
    with atomic_path(cache / "teacher") as folder:
        folder.mkdir()
        save_file(interface.tensors, folder / INTERFACE)
        (folder / "config.json").write_text(json.dumps(interface.config, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        tokenizer.save_pretrained(folder)
    records = [FileRecord.of(path) for path in sorted((cache / "teacher").iterdir())]
    write_json(cache / RECORDS, [record.model_dump() for record in records])
    return records


def teacher_folder_records(cache: Path) -> list[FileRecord] | None:
    """The records of a folder that is whole, None when it has to be written (again)."""
    try:
        records = [FileRecord.model_validate(record) for record in json.loads((cache / RECORDS).read_bytes())]
    except (FileNotFoundError, ValueError):
        return None
    return None if any(record.problem(cache / "teacher") for record in records) else records
