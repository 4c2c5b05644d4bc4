"""From an engine's name to the engine; each is imported when it is chosen."""

from pipeline.contract.errors import NotThereYet
from pipeline.contract.manifest.shard import ShardManifest
from stage1_teacher.engines.base import TeacherEngine
from stage1_teacher.teacher_files import TeacherFiles


def open_engine(files: TeacherFiles, shard: ShardManifest) -> TeacherEngine:
    """Load the teacher into the engine that the shard names.

    Raises:
        TeacherError: the teacher cannot be loaded.
        NotThereYet: an engine of the design that this version has not.
    """
    if shard.engine != "transformers":
        raise NotThereYet(f"engine={shard.engine}: this version scores with transformers; add --engine transformers")
    from stage1_teacher.engines.transformers_engine import TransformersEngine

    return TransformersEngine(files, shard)
