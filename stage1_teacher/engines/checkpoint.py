"""What a teacher's folder says without loading the model: its family, and the tensors that students need."""

import json
from typing import Any

import torch
from torch import Tensor

from pipeline.contract.errors import TeacherError
from stage1_teacher.engines.base import FAMILIES, TeacherInterface
from stage1_teacher.teacher_files import TeacherFiles

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def require_family(files: TeacherFiles) -> Any:
    """The teacher's config.

    Raises:
        TeacherError: it cannot be read, or its family is not supported.
    """
    from transformers import AutoConfig

    known = ", ".join(FAMILIES)
    try:
        config = AutoConfig.from_pretrained(files.folder, **files.load_arguments())
    except (ValueError, OSError) as error:
        line = str(error).splitlines()[0]
        raise TeacherError(f"teacher.model={files.folder}: its config cannot be read ({line}); supported are {known}") from None
    if config.model_type not in FAMILIES:
        raise TeacherError(f"teacher.model={files.folder}: family {config.model_type!r} is not supported; supported are {known}")
    return config


def read_interface(files: TeacherFiles, config: Any, dtype: torch.dtype) -> TeacherInterface:
    """Embedding, final norm and head from the safetensors, in the dtype that the teacher runs in.

    Raises:
        TeacherError: a tensor is missing.
    """
    names = {"embed_tokens.weight": EMBEDDING, "norm.weight": NORM}
    if not config.tie_word_embeddings:
        names["lm_head.weight"] = HEAD
    tensors = {ours: _tensor(files, name).to(dtype) for ours, name in names.items()}
    return TeacherInterface(tensors, config.to_dict() | {"dtype": str(dtype).removeprefix("torch.")})


def _tensor(files: TeacherFiles, name: str) -> Tensor:
    from safetensors import SafetensorError, safe_open

    index = files.folder / INDEX
    file = json.loads(index.read_bytes())["weight_map"].get(name) if index.is_file() else SINGLE
    try:
        with safe_open(files.folder / str(file), "pt") as tensors:
            return tensors.get_tensor(name)
    except (OSError, SafetensorError) as error:
        line = str(error).splitlines()[0]
        raise TeacherError(f"teacher.model={files.folder}: tensor {name} cannot be read ({line}); copy the folder again") from None
