"""When a batch does not fit: how that shows, and by how much the next one is smaller.

Only what is in flight can run out while documents are scored, since weights and the engine's own cache are allocated at its start.
"""

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import CacheLayout

HALVINGS = 4
"""A sixteenth of what the manifest says is the least that is tried."""

_SIGNS = ("out of memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: a class of torch's on a GPU, a plain RuntimeError on a CPU, text alone from another process."""
    return isinstance(error, MemoryError) or any(sign in str(error).lower() for sign in _SIGNS)


def halved(layout: CacheLayout, first: CacheLayout) -> CacheLayout:
    """Half as many tokens a batch and rows a chunk; `first` is what the manifest says.

    Raises:
        TeacherError: it was halved often enough.
    """
    least = max(1, first.tokens_per_batch >> HALVINGS)
    if layout.tokens_per_batch // 2 < least:
        raise TeacherError(
            f"cache.tokens_per_batch={first.tokens_per_batch}: out of memory, with {layout.tokens_per_batch} too; "
            "free the device, or spread the teacher over more of them (cache.tensor_parallel)"
        )
    smaller = {"tokens_per_batch": layout.tokens_per_batch // 2, "rows_per_chunk": max(1, layout.rows_per_chunk // 2)}
    return layout.model_copy(update=smaller)
