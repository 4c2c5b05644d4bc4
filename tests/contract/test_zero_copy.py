"""`raw` is read where the file is mapped; what is compressed is not (field case 31)."""

import numpy as np
import pyarrow as pa
import pytest
from reference_rows import kept_document, sampled_document
from stored import codec, file_of

from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.padded import read_rows
from pipeline.contract.manifest.shard import Targets

ROWS, VOCAB = 400, 5000


def mapped(name, mode, path):
    """Columns of a file's only batch and the map they should be in."""
    targets, rng = Targets(mode=mode, entropy=True), np.random.default_rng(0)
    exact = sampled_document(rng, ROWS, VOCAB, 128) if mode == "sampled" else kept_document(rng, [64] * ROWS, VOCAB, entropy=True)
    made = codec(name, targets, VOCAB)
    path.write_bytes(file_of(made, [made.encode([exact, exact], 0)]))
    source = pa.memory_map(str(path))
    return made, Columns(pa.ipc.open_file(source).get_batch(0)), source.read_buffer()


def inside(array: np.ndarray, buffer: pa.Buffer) -> bool:
    start = array.__array_interface__["data"][0]
    return buffer.address <= start and start + array.nbytes <= buffer.address + buffer.size


def names(made) -> list[str]:
    return made.schema.names[2:]


@pytest.mark.parametrize("mode", ["topk", "sampled"])
def test_raw_arrays_are_the_map_itself(mode, tmp_path):
    before = pa.total_allocated_bytes()
    made, columns, buffer = mapped("raw", mode, tmp_path / "raw.arrow")
    parts = [columns.part(name, row) for name in names(made) for row in range(2)]
    assert pa.total_allocated_bytes() == before
    assert all(len(part) and inside(part, buffer) and not part.flags.writeable for part in parts)


@pytest.mark.parametrize("name", ["plain", "ranks"])
def test_compressed_arrays_are_copies(name, tmp_path):
    before = pa.total_allocated_bytes()
    made, columns, buffer = mapped(name, "topk", tmp_path / "zstd.arrow")
    assert pa.total_allocated_bytes() > before + ROWS * 64
    assert not any(inside(columns.part(part, 0), buffer) for part in names(made) if len(columns.part(part, 0)))


def test_reading_rows_of_a_map_leaves_no_arrow_memory(tmp_path):
    before = pa.total_allocated_bytes()
    made, columns, _ = mapped("raw", "topk", tmp_path / "raw.arrow")
    for row in range(2):
        assert read_rows(made, columns, row).ids.shape == (ROWS, 64)
    assert pa.total_allocated_bytes() == before
