"""Any document, in any order, in bounded memory, from a disk or through staging (field cases 31, 33, 34)."""

import gc
import os
import pickle
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from handmade import flip_bit, handmade, write_cache

from pipeline.contract.errors import CacheError, PipelineError
from pipeline.contract.logit_cache import LogitCache, reader
from pipeline.contract.remote.store import RemoteStore
from pipeline.contract.store import open_store

ROOT = Path(__file__).parents[2]
LENGTHS = [5, 30, 2, 49, 2, 51, 80, 3, 3, 3, 1, 20, 17]


@pytest.fixture
def documents():
    return [handmade(length, seed) for seed, length in enumerate(LENGTHS)]


def same(read, written):
    """Ids, labels and masses of a plain cache come back."""
    for name in ("token_ids", "counts", "ids", "label_logprob", "tail_logprob"):
        np.testing.assert_array_equal(getattr(read, name), getattr(written, name))
    np.testing.assert_allclose(read.logprobs, written.logprobs, atol=1e-2)


@pytest.mark.parametrize("name", ["raw", "plain"])
def test_random_access_equals_writing_order(tmp_path, documents, name):
    write_cache(tmp_path, documents, per_shard=5, name=name)
    cache = LogitCache.open(tmp_path)
    assert len(cache) == len(documents)
    order = list(range(len(documents))) * 2
    random.Random(0).shuffle(order)
    for index in order:
        same(cache[index], documents[index])


def test_rectangles_hold_what_documents_hold(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    cache, chosen = LogitCache.open(tmp_path), [6, 0, 10, 11]
    padded = cache.padded(chosen)
    assert padded.token_ids.shape == (4, 80) and padded.ids.shape == (4, 80, 4)
    for place, index in enumerate(chosen):
        document, rows = cache[index], LENGTHS[index] - 1
        np.testing.assert_array_equal(padded.token_ids[place, : rows + 1], document.token_ids)
        np.testing.assert_array_equal(padded.ids[place, :rows].flatten(), document.ids)
        np.testing.assert_allclose(np.log(padded.weights[place, :rows]).flatten(), document.logprobs, atol=1e-6)
        assert not padded.counts[place, rows:].any() and not padded.weights[place, rows:].any()
    assert cache.padded([]).token_ids.shape[0] == 0


def test_lengths_are_known_without_a_payload(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    cache = LogitCache.open(tmp_path)
    for payload in tmp_path.glob("shards/*.arrow"):
        payload.unlink()
    assert cache.input_tokens.tolist() == LENGTHS
    assert cache.input_tokens.dtype == np.int32


@pytest.mark.parametrize("index", [-1, len(LENGTHS), 10**9])
def test_an_index_outside_is_an_index_error(tmp_path, documents, index):
    write_cache(tmp_path, documents, per_shard=5)
    for read in (lambda cache: cache[index], lambda cache: cache.padded([0, index])):
        with pytest.raises(IndexError):
            read(LogitCache.open(tmp_path))


def private_bytes() -> int:
    """Memory of this process that is no file's."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) << 10


def test_memory_is_a_few_batches_however_much_is_read(tmp_path):
    write_cache(tmp_path, [handmade(200, seed, k=60) for seed in range(120)], per_shard=5, tokens_per_batch=200)
    batch_bytes = 200 * (60 * 6 + 16)
    cache, before, most, epochs = LogitCache.open(tmp_path), pa.total_allocated_bytes(), 0, []
    for epoch in range(4):
        order = random.Random(epoch).sample(range(120), 120)
        for index in order:
            cache[index]
            most = max(most, pa.total_allocated_bytes() - before)
        epochs.append(private_bytes())
    assert 0 < most < 2 * reader.OPEN_BATCHES * batch_bytes < 120 * batch_bytes / 4
    assert epochs[-1] - epochs[0] < 40 * batch_bytes < 120 * batch_bytes
    gc.collect()  # else what has just been closed may still be mapped
    assert len([name for name in open_files() if name.endswith(".arrow")]) <= reader.OPEN_SHARDS < 24


def open_files() -> list[str]:
    maps = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split()[-1] for line in maps if "/" in line})


def test_a_document_costs_one_batch(tmp_path, monkeypatch):
    """However large the shard; and its neighbours are free then."""
    decoded = []

    class Counted(reader.Columns):
        def __init__(self, batch):
            decoded.append(batch.num_rows)
            super().__init__(batch)

    monkeypatch.setattr(reader, "Columns", Counted)
    write_cache(tmp_path, [handmade(50, seed) for seed in range(80)], per_shard=80, tokens_per_batch=200)
    cache = LogitCache.open(tmp_path)
    assert decoded == []
    cache[41]
    assert decoded == [4]
    cache[40], cache[43]
    assert decoded == [4]
    cache[44]
    assert decoded == [4, 4]


def test_decoded_arrays_outlive_their_batch(tmp_path):
    written = [handmade(100, seed) for seed in range(60)]
    write_cache(tmp_path, written, per_shard=10, tokens_per_batch=100)
    cache = LogitCache.open(tmp_path)
    first = cache[0]
    for index in [*range(1, 60), *range(59, 0, -1)]:
        cache[index]
    same(first, written[0])


def test_a_pickled_cache_opens_files_of_its_own(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    cache = LogitCache.open(tmp_path)
    cache[0]
    data = pickle.dumps(cache)
    assert len(data) < 20_000  # no file and no batch goes along
    same(pickle.loads(data)[12], documents[12])


@pytest.mark.parametrize("remote", [False, True])
def test_workers_of_a_data_loader_read(tmp_path, s3, documents, remote):
    """Forked, as they are on Linux, after this process has read already."""
    from torch.utils.data import DataLoader

    where = s3 if remote else open_store(tmp_path)
    write_cache(where, documents, per_shard=5)
    cache = LogitCache.open(where)
    cache[0]
    loader = DataLoader(cache, batch_size=None, num_workers=2, timeout=60)
    for read, written in zip(loader, documents, strict=True):
        np.testing.assert_array_equal(read.ids, written.ids)


READER = """
import sys, time
from pipeline.contract.logit_cache import LogitCache
cache = LogitCache.open(sys.argv[1])
documents = [cache[i] for i in range(len(cache))]
print("read", flush=True)
time.sleep(60)
"""


def test_a_killed_reader_leaves_no_shared_memory(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    files = sorted(tmp_path.rglob("*"))
    with subprocess.Popen([sys.executable, "-c", READER, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "read\n"
        maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
        opened = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        process.send_signal(signal.SIGKILL)
    assert not any("/dev/shm" in name for name in [*maps, *opened])
    assert sorted(tmp_path.rglob("*")) == files
    same(LogitCache.open(tmp_path)[0], documents[0])


def test_a_missing_cache_names_the_command_that_makes_it(tmp_path):
    with pytest.raises(CacheError, match=r"no finished cache; make it with 'pipeline cache-teacher --shard tiny'"):
        LogitCache.open(tmp_path / "tiny")


def test_an_uncaptured_split_names_the_command(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    with pytest.raises(CacheError, match="--split validation"):
        LogitCache.open(tmp_path, "validation")


def test_a_temperature_that_was_not_captured_is_refused(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5)
    with pytest.raises(CacheError, match=r"temperature 2 was not captured, only 1; .* --set targets.temperatures=\[1,2\]"):
        LogitCache.open(tmp_path).padded([0], temperature=2.0)


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def _empty(path):
    path.write_bytes(b"")


def _rename(path):
    path.rename(path.with_name("train-00001-000000000000.arrow"))


HARMS = [_truncate, _empty, _rename, Path.unlink]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_opening_refuses_a_payload_that_is_not_there_as_written(tmp_path, documents, harm):
    harm(tmp_path / write_cache(tmp_path, documents, per_shard=5)[1].payload.name)
    with pytest.raises(CacheError, match=r"shard train-00001: .*; run 'pipeline cache repair --shard"):
        LogitCache.open(tmp_path)


@pytest.mark.parametrize("harm", [_rename, _truncate], ids=lambda harm: harm.__name__.strip("_"))
def test_what_is_lost_while_a_cache_is_open_is_named_as_it_is_read(tmp_path, documents, harm):
    payload = tmp_path / write_cache(tmp_path, documents, per_shard=5)[1].payload.name
    cache = LogitCache.open(tmp_path)
    harm(payload)
    same(cache[0], documents[0])
    with pytest.raises(PipelineError, match="train-00001") as caught:
        cache[7]
    assert "\n" not in str(caught.value)


def test_a_lost_vocabulary_names_the_repair(tmp_path, documents):
    write_cache(tmp_path, documents, per_shard=5, name="ranks")
    flip_bit(tmp_path / "vocabulary.arrow")
    with pytest.raises(CacheError, match=r"vocabulary.arrow: does not have the hash .*run 'pipeline cache repair"):
        LogitCache.open(tmp_path)[0]


# Behind a URL


@pytest.mark.parametrize("times", [1, 3])
def test_a_copy_that_made_room_before_it_was_opened_is_fetched_again(memory, documents, monkeypatch, times):
    write_cache(memory, documents, per_shard=5)
    fetch, evicted = RemoteStore.fetch, []

    def fetch_and_lose(store, *arguments):
        path = fetch(store, *arguments)
        if len(evicted) < times:
            evicted.append(path)
            path.unlink()
        return path

    monkeypatch.setattr(RemoteStore, "fetch", fetch_and_lose)
    same(LogitCache.open(memory)[7], documents[7])
    assert len(evicted) == times


def test_staging_for_one_shard_is_enough_for_all(memory, documents, monkeypatch, staging):
    """Open shards stay readable when their copies make room."""
    shards = write_cache(memory, documents, per_shard=2)
    monkeypatch.setenv("PIPELINE_STAGING_BYTES", str(max(shard.payload.bytes for shard in shards)))
    cache = LogitCache.open(memory)
    for index in random.Random(0).sample(range(len(documents)), len(documents)):
        same(cache[index], documents[index])
    assert len([path for path in staging.iterdir() if not path.name.startswith(".")]) == 1


def test_a_lost_payload_behind_a_url_is_named(memory, documents):
    shards = write_cache(memory, documents, per_shard=5)
    memory.remove(shards[1].payload.name)
    cache = LogitCache.open(memory)
    with pytest.raises(CacheError, match=r"shard train-00001: cannot be read .*; run 'pipeline cache repair"):
        cache[7]


def test_damage_behind_a_url_does_not_outlive_its_repair(memory, documents):
    """A copy of damaged bytes would be read for ever: its name carries the hash of the right ones."""
    name = write_cache(memory, documents, per_shard=5)[1].payload.name
    whole = memory.read_bytes(name)
    memory.write_bytes(name, whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    with pytest.raises(PipelineError, match="does not have the hash"):
        LogitCache.open(memory)[7]
    memory.write_bytes(name, whole)
    same(LogitCache.open(memory)[7], documents[7])


@pytest.mark.parametrize("name", ["raw", "ranks"])
def test_no_damaged_byte_of_a_batch_is_decoded(tmp_path, documents, name):
    """Whichever it is, of the message's head or of a column; other batches of the shard can still be read."""
    (shard,) = write_cache(tmp_path, documents[:6], per_shard=6, name=name)
    first, *_, last = shard.batches
    for at in random.Random(1).sample(range(first.start, first.end), 60):
        flip_bit(tmp_path / shard.payload.name, at)
        cache = LogitCache.open(tmp_path)
        with pytest.raises(
            CacheError, match=rf"train-00000: cannot be read \(bytes {first.start} to {first.end} .* run 'pipeline cache repair"
        ):
            cache[0]
        same(cache[5], documents[5]) if name == "raw" else cache[5]
        flip_bit(tmp_path / shard.payload.name, at)


def test_batches_tell_where_they_are(tmp_path, documents):
    """As Arrow's own footer does: each message starts where the one before ends, and the footer's follows."""
    for shard in write_cache(tmp_path, documents, per_shard=5):
        data = (tmp_path / shard.payload.name).read_bytes()
        own = pa.ipc.open_file(data)
        for number, batch in enumerate(shard.batches):
            assert pa.ipc.read_record_batch(data[batch.start : batch.end], own.schema).equals(own.get_batch(number))
        assert [batch.start for batch in shard.batches[1:]] == [batch.end for batch in shard.batches[:-1]]
