"""Nothing half-written is believed, and any document is found again in bounded memory (field cases 30, 31, 33)."""

import json
import random

import numpy as np
import pyarrow as pa
import pytest
from handmade import flip_bit, handmade, write, write_cache

from pipeline.contract.errors import CacheError
from pipeline.contract.hashing import hash_file
from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.index import read_manifest, read_sidecar, sidecar_path
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.logit_cache.writer import batch_ranges, finished_shard

LENGTHS = [5, 30, 1, 49, 2, 51, 80, 3, 3, 3, 1, 20, 17]


@pytest.fixture
def documents():
    return [handmade(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def shard(tmp_path, documents):
    return write(tmp_path, 0, documents)


def names(cache):
    return sorted(path.name for path in (cache / "shards").iterdir())


def test_the_payload_carries_its_hash_and_the_sidecar_names_it(tmp_path, shard):
    (payload,) = (tmp_path / "shards").glob("*.arrow")
    hashed = hash_file(payload)
    assert payload.name == f"train-00000-{hashed[:12]}.arrow"
    assert shard.payload.model_dump() == {"name": payload.name, "bytes": payload.stat().st_size, "xxh3_128": hashed}
    assert read_sidecar(tmp_path, "train", 0) == shard
    assert names(tmp_path) == [payload.name, "train-00000.json"]


def test_the_sidecar_counts_what_was_written(shard, documents):
    assert shard.documents == len(LENGTHS)
    assert shard.input_tokens == sum(LENGTHS)
    assert shard.tokens == sum(LENGTHS) - len(LENGTHS)
    assert shard.entries == 4 * shard.tokens
    assert sum(shard.batch_rows) == len(LENGTHS)
    assert len(shard.batch_rows) > 3
    assert sum(shard.fidelity.histogram) == shard.tokens
    kept = sum(np.exp(document.logprobs.astype(np.float64)).sum() for document in documents)
    assert shard.mass_kept_sum == pytest.approx(kept, rel=1e-6)
    assert shard.label_logprob_sum == pytest.approx(sum(float(document.label_logprob.sum(dtype=float)) for document in documents))


def test_batches_hold_about_the_tokens_asked_for(documents):
    ranges = list(batch_ranges(documents, 50))
    assert [start for start, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, len(documents))
    assert all(stop - start == 1 or sum(LENGTHS[start:stop]) <= 50 for start, stop in ranges)


def test_the_same_documents_give_the_same_bytes(tmp_path, documents):
    assert write(tmp_path / "a", 0, documents) == write(tmp_path / "b", 0, documents)


def test_a_stale_payload_of_the_same_index_goes_and_others_stay(tmp_path, shard, documents):
    other = write(tmp_path, 1, documents[:3])
    again = write(tmp_path, 0, documents[:-1])
    assert again.payload.name != shard.payload.name
    assert names(tmp_path) == sorted([again.payload.name, "train-00000.json", other.payload.name, "train-00001.json"])
    assert finished_shard(tmp_path, "train", 0, len(LENGTHS) - 1) == again
    assert finished_shard(tmp_path, "train", 1, 3) == other


def test_a_failure_before_the_sidecar_leaves_the_older_shard_finished(tmp_path, shard, documents, monkeypatch):
    def fail(*arguments):
        raise OSError("pulled")

    monkeypatch.setattr("pipeline.contract.logit_cache.writer.write_json", fail)
    with pytest.raises(OSError, match="pulled"):
        write(tmp_path, 0, documents[:4])
    assert finished_shard(tmp_path, "train", 0, len(LENGTHS)) == shard


def _remove_sidecar(cache, shard):
    sidecar_path(cache, "train", 0).unlink()


def _cut_sidecar(cache, shard):
    path = sidecar_path(cache, "train", 0)
    path.write_bytes(path.read_bytes()[:-20])


def _garble_sidecar(cache, shard):
    sidecar_path(cache, "train", 0).write_bytes(b"\xff\xfe\x00")


def _foreign_sidecar(cache, shard):
    sidecar_path(cache, "train", 0).write_text('{"payload": 3}')


def _truncate_payload(cache, shard):
    path = cache / "shards" / shard.payload.name
    path.write_bytes(path.read_bytes()[:-1])


def _empty_payload(cache, shard):
    (cache / "shards" / shard.payload.name).write_bytes(b"")


def _remove_payload(cache, shard):
    (cache / "shards" / shard.payload.name).unlink()


def _flip_payload(cache, shard):
    flip_bit(cache / "shards" / shard.payload.name)


HARMS = [
    _remove_sidecar,
    _cut_sidecar,
    _garble_sidecar,
    _foreign_sidecar,
    _truncate_payload,
    _empty_payload,
    _remove_payload,
    _flip_payload,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_a_damaged_shard_is_not_finished(tmp_path, shard, harm):
    assert finished_shard(tmp_path, "train", 0, len(LENGTHS)) == shard
    harm(tmp_path, shard)
    assert finished_shard(tmp_path, "train", 0, len(LENGTHS)) is None


@pytest.mark.parametrize("count", [0, len(LENGTHS) - 1, len(LENGTHS) + 1])
def test_a_shard_of_another_document_count_is_not_finished(tmp_path, shard, count):
    assert finished_shard(tmp_path, "train", 0, count) is None


def test_random_access_equals_writing_order(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    cache = LogitCache.open(tmp_path)
    assert len(cache) == len(documents)
    order = list(range(len(documents))) * 2
    random.Random(0).shuffle(order)
    for index in order:
        np.testing.assert_array_equal(cache[index].token_ids, documents[index].token_ids)
        np.testing.assert_array_equal(cache[index].ids, documents[index].ids)
        np.testing.assert_array_equal(cache[index].label_logprob, documents[index].label_logprob)


def test_lengths_are_known_without_decoding(tmp_path, documents, monkeypatch):
    write_cache(tmp_path, documents, per_shard=5)
    monkeypatch.setattr("pipeline.contract.logit_cache.codec.decode", None)
    lengths = LogitCache.open(tmp_path).input_tokens
    assert lengths.tolist() == LENGTHS
    assert lengths.dtype == np.int32


@pytest.mark.parametrize("index", [-1, len(LENGTHS), 10**9])
def test_an_index_outside_is_an_index_error(tmp_path, documents, index):
    write_cache(tmp_path, documents, per_shard=5)
    with pytest.raises(IndexError, match=r"outside 0\.\.12"):
        LogitCache.open(tmp_path)[index]


def test_memory_is_a_few_batches_however_much_is_read(tmp_path):
    write_cache(tmp_path, [handmade(200, seed, k=60) for seed in range(120)], per_shard=15, tokens_per_batch=200)
    batch_bytes = 200 * (60 * 6 + 16)
    cache, before, most = LogitCache.open(tmp_path), pa.total_allocated_bytes(), 0
    order = list(range(120)) * 2
    random.Random(1).shuffle(order)
    for index in order:
        cache[index]
        most = max(most, pa.total_allocated_bytes() - before)
    assert 0 < most < 16 * batch_bytes < 120 * batch_bytes / 2


def test_decoded_arrays_outlive_their_batch(tmp_path):
    written = [handmade(100, seed) for seed in range(60)]
    write_cache(tmp_path, written, per_shard=10, tokens_per_batch=100)
    cache = LogitCache.open(tmp_path)
    first = cache[0]
    for index in [*range(1, 60), *range(59, 0, -1)]:
        cache[index]
    np.testing.assert_array_equal(first.ids, written[0].ids)
    np.testing.assert_array_equal(first.token_ids, written[0].token_ids)
    np.testing.assert_allclose(first.logprobs, written[0].logprobs, atol=1e-2)


def test_a_missing_cache_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(CacheError, match=r"no finished cache; make it with 'pipeline cache-teacher --shard tiny'"):
        LogitCache.open(tmp_path / "tiny")


def test_a_newer_format_is_refused(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 7, "of_tomorrow": 1}))
    with pytest.raises(CacheError, match=r"format_version 7, this version reads 0; use the version"):
        read_manifest(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"\xff\xfe", b'{"format_version": 0}', b"3"])
def test_a_damaged_manifest_says_so_in_one_line(tmp_path, content):
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(CacheError, match=r"is damaged .* to rebuild it from the shards") as caught:
        read_manifest(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_uncaptured_split_names_the_command(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    with pytest.raises(CacheError, match="--split validation"):
        LogitCache.open(tmp_path, "validation")


@pytest.mark.parametrize("harm", [_truncate_payload, _remove_payload])
def test_opening_refuses_a_payload_of_another_size_by_shard(tmp_path, documents, harm):
    harm(tmp_path, write_cache(tmp_path, documents, per_shard=5)[1])
    with pytest.raises(CacheError, match=r"shard train-00001: .* redoes that shard and no other"):
        LogitCache.open(tmp_path)


def test_verify_names_each_part_that_differs(tmp_path, documents):
    shards = write_cache(tmp_path, documents, per_shard=5)
    assert verify(tmp_path, deep=True).as_json() == {"ok": True, "shards": 3, "bad": []}
    _flip_payload(tmp_path, shards[1])
    sidecar_path(tmp_path, "train", 2).unlink()
    assert [bad.shard for bad in verify(tmp_path).bad] == ["train-00002"]
    assert [bad.shard for bad in verify(tmp_path, deep=True).bad] == ["train-00001", "train-00002"]
