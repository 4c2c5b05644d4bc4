"""Memory that runs out is known by its own signs, and what is tried next is half, and ends."""

import pytest
import torch

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import CacheLayout
from stage1_teacher.engines.out_of_memory import HALVINGS, halved, is_out_of_memory


def test_what_a_cpu_raises_is_known():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 5.00 GiB"), True),
        (MemoryError(), True),
        (RuntimeError("Worker failed with error 'CUDA out of memory. Tried to ...'"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (RuntimeError("3 rows of a document are held, 5 were computed"), False),
    ],
)
def test_other_errors_are_not(error, is_it):
    assert is_out_of_memory(error) == is_it


def test_halves_come_to_an_end():
    first = layout = CacheLayout(tokens_per_batch=8192, rows_per_chunk=6)
    seen = []
    with pytest.raises(TeacherError, match=r"cache.tokens_per_batch=8192: out of memory, with 512 too") as caught:
        while True:
            layout = halved(layout, first)
            seen.append((layout.tokens_per_batch, layout.rows_per_chunk))
    assert seen == [(4096, 3), (2048, 1), (1024, 1), (512, 1)] and len(seen) == HALVINGS
    assert "\n" not in str(caught.value)
