"""`raw` is read where the file is mapped; what is compressed is not (field case 31)."""

import numpy as np
import pyarrow as pa
import pytest
from handmade import handmade, write_cache
from reference_rows import kept_document, sampled_document
from stored import codec, file_of

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.columns import Columns
from pipeline.contract.logit_cache.statistics import cache_statistics
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


@pytest.mark.parametrize("name", ["raw", "plain", "ranks"])
def test_a_cache_says_which_it_is_and_its_reader_keeps_to_it(name, tmp_path):
    write_cache(tmp_path, [handmade(300, seed) for seed in range(4)], 2, name=name)
    cache, before = LogitCache.open(tmp_path), pa.total_allocated_bytes()
    assert [len(cache[index].token_ids) for index in range(4)] == [300] * 4
    assert cache.padded([3, 0]).ids.shape == (2, 300, 4)
    is_free = pa.total_allocated_bytes() == before
    assert cache_statistics(cache.manifest)["zero_copy"] == is_free == (name == "raw")
