"""Nothing half-written is believed: payload, then sidecar, then manifest, each whole or not there (field cases 30, 33)."""

import shutil

import numpy as np
import pyarrow as pa
import pytest
from handmade import MADE_BY, codec, flip_bit, handmade, write, write_cache

from pipeline.contract.errors import CacheError
from pipeline.contract.hashing import hash_file
from pipeline.contract.logit_cache.index import MANIFEST, parse_manifest, read_manifest, read_sidecar, sidecar_name
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.logit_cache.writer import batch_ranges, finished_shard
from pipeline.contract.sealed import Damaged, sealed_bytes, unsealed, write_sealed
from pipeline.contract.store import LocalStore

LENGTHS = [5, 30, 2, 49, 2, 51, 80, 3, 3, 3, 1, 20, 17]
COUNT = len(LENGTHS)


@pytest.fixture
def documents():
    return [handmade(length, seed) for seed, length in enumerate(LENGTHS)]


@pytest.fixture
def cache(tmp_path):
    return LocalStore(tmp_path)


@pytest.fixture
def shard(cache, documents):
    return write(cache, 0, documents)


def finished(cache, *, index=0, count=COUNT, deep=False):
    return finished_shard(cache, "train", index, count, MADE_BY, deep=deep)


def test_the_payload_carries_its_hash_and_the_sidecar_names_it(cache, shard):
    (payload,) = cache.path.glob("shards/*.arrow")
    hashed = hash_file(payload)
    assert payload.name == f"train-00000-{hashed[:12]}.arrow"
    assert shard.payload.model_dump() == {"name": f"shards/{payload.name}", "bytes": payload.stat().st_size, "xxh3_128": hashed}
    assert read_sidecar(cache, "train", 0) == shard
    assert cache.names() == [shard.payload.name, "shards/train-00000.json"]


def test_the_sidecar_counts_what_was_written(shard, documents):
    assert shard.documents == len(LENGTHS)
    assert shard.input_tokens == sum(LENGTHS)
    assert shard.tokens == sum(LENGTHS) - len(LENGTHS)
    assert shard.entries == 4 * shard.tokens
    assert sum(batch.documents for batch in shard.batches) == len(LENGTHS)
    assert len(shard.batches) > 3
    assert sum(shard.fidelity.whole.histogram) == shard.fidelity.whole.rows == shard.tokens
    kept = sum(np.exp(document.logprobs.astype(np.float64)).sum() for document in documents)
    assert shard.mass_kept_sum == pytest.approx(kept, rel=1e-6)
    assert shard.label_logprob_sum == pytest.approx(sum(float(document.label_logprob.sum(dtype=float)) for document in documents))
    assert shard.made_by == MADE_BY


def test_documents_of_a_payload_are_numbered_in_their_split(cache, documents):
    record = write(cache, 3, documents, first=60)
    with pa.memory_map(str(cache.path / record.payload.name)) as source:
        table = pa.ipc.open_file(source).read_all()
    assert table["document"].to_pylist() == list(range(60, 60 + len(LENGTHS)))
    assert table["input_tokens"].to_pylist() == LENGTHS
    assert not any(pa.types.is_dictionary(column.type) for column in table.schema)  # field case 32


def test_batches_hold_about_the_tokens_asked_for(documents):
    ranges = list(batch_ranges(documents, 50))
    assert [start for start, _ in ranges[1:]] == [stop for _, stop in ranges[:-1]]
    assert (ranges[0][0], ranges[-1][1]) == (0, len(documents))
    assert all(stop - start == 1 or sum(LENGTHS[start:stop]) <= 50 for start, stop in ranges)


@pytest.mark.parametrize("name", ["raw", "plain", "ranks"])
def test_the_same_documents_give_the_same_bytes(tmp_path, documents, name):
    a, b = LocalStore(tmp_path / "a"), LocalStore(tmp_path / "b")
    assert write(a, 0, documents, name=name) == write(b, 0, documents, name=name)


def test_a_shard_that_is_written_again_counts_from_its_sidecar_on(cache, shard, documents):
    """The older payload is what a manifest or an open reader may still name: it is left to `gc`."""
    other = write(cache, 1, documents[:3])
    again = write(cache, 0, documents[:-1])
    payloads = {shard.payload.name, again.payload.name, other.payload.name}
    assert len(payloads) == 3 and payloads == {name for name in cache.names() if name.endswith(".arrow")}
    assert finished(cache, count=COUNT - 1) == again
    assert finished(cache, index=1, count=3) == other


@pytest.mark.parametrize("step", ["put", "write_bytes"])
def test_a_failure_before_the_sidecar_leaves_the_older_shard_finished(cache, shard, documents, monkeypatch, step):
    def fail(*arguments):
        raise OSError("pulled")

    monkeypatch.setattr(LocalStore, step, fail)
    with pytest.raises(OSError, match="pulled"):
        write(cache, 0, documents[:4])
    assert finished(cache) == shard


def _sidecar(cache):
    return cache.path / sidecar_name("train", 0)


def _remove_sidecar(cache, shard):
    _sidecar(cache).unlink()


def _cut_sidecar(cache, shard):
    _sidecar(cache).write_bytes(_sidecar(cache).read_bytes()[:-20])


def _garble_sidecar(cache, shard):
    _sidecar(cache).write_bytes(b"\xff\xfe\x00")


def _unsealed_sidecar(cache, shard):
    _sidecar(cache).write_text('{"payload": 3}')


def _edited_sidecar(cache, shard):
    _sidecar(cache).write_text(_sidecar(cache).read_text().replace(f'"tokens": {shard.tokens}', f'"tokens": {shard.tokens + 1}'))


def _sidecar_of_another_form(cache, shard):
    write_sealed(cache, sidecar_name("train", 0), {"payload": 3})


def _sidecar_of_another_shard(cache, shard):
    write_sealed(cache, sidecar_name("train", 0), shard.model_copy(update={"index": 1}).model_dump())


def _sidecar_of_another_cache(cache, shard):
    made_by = MADE_BY.model_copy(update={"fingerprint": "0" * 32})
    write_sealed(cache, sidecar_name("train", 0), shard.model_copy(update={"made_by": made_by}).model_dump())


def _sidecar_of_another_vocabulary(cache, shard):
    made_by = MADE_BY.model_copy(update={"vocabulary": "0" * 32})
    write_sealed(cache, sidecar_name("train", 0), shard.model_copy(update={"made_by": made_by}).model_dump())


def _truncate_payload(cache, shard):
    path = cache.path / shard.payload.name
    path.write_bytes(path.read_bytes()[:-1])


def _empty_payload(cache, shard):
    (cache.path / shard.payload.name).write_bytes(b"")


def _remove_payload(cache, shard):
    (cache.path / shard.payload.name).unlink()


def _flip_payload(cache, shard):
    flip_bit(cache.path / shard.payload.name)


HARMS = [
    _remove_sidecar,
    _cut_sidecar,
    _garble_sidecar,
    _unsealed_sidecar,
    _edited_sidecar,
    _sidecar_of_another_form,
    _sidecar_of_another_shard,
    _sidecar_of_another_cache,
    _sidecar_of_another_vocabulary,
    _truncate_payload,
    _empty_payload,
    _remove_payload,
]


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__.strip("_"))
def test_a_damaged_shard_is_not_finished(cache, shard, harm):
    assert finished(cache) == shard
    harm(cache, shard)
    assert finished(cache) is None


def test_a_flipped_bit_takes_the_deep_look(cache, shard):
    _flip_payload(cache, shard)
    assert finished(cache) == shard
    assert finished(cache, deep=True) is None


@pytest.mark.parametrize("count", [0, COUNT - 1, COUNT + 1])
def test_a_shard_of_another_document_count_is_not_finished(cache, shard, count):
    assert finished(cache, count=count) is None


@pytest.mark.parametrize("content", [b"{", b"", b"[]", b"3", b"null", b"\xff\xfe", b'{"format_version": 1}', b"{" * 100_000])
def test_a_damaged_manifest_says_so_in_one_line(cache, content):
    cache.write_bytes(MANIFEST, content)
    with pytest.raises(CacheError, match=r"manifest.json: .*; run 'pipeline cache repair --shard .*' to make it again") as caught:
        read_manifest(cache)
    assert "\n" not in str(caught.value)


def test_any_flipped_bit_of_a_manifest_is_damage_and_no_other_version(cache, documents):
    """One bit makes format_version 1 a 0, 3, 5 or 9: to send anyone after another version of the tool for that were wrong."""
    write_cache(cache, documents, per_shard=5)
    data = cache.read_bytes(MANIFEST)
    version = data.index(b'"format_version": 1') + len(b'"format_version": ')
    for place in {version, *range(0, len(data), 97)}:
        for bit in range(8):
            harmed = bytearray(data)
            harmed[place] ^= 1 << bit
            with pytest.raises(Damaged):
                parse_manifest(bytes(harmed))


def test_another_format_is_refused(cache, documents):
    write_cache(cache, documents, per_shard=5)
    value = unsealed(cache.read_bytes(MANIFEST))
    for version in (99, 2, 0, None):
        cache.write_bytes(MANIFEST, sealed_bytes(value | {"format_version": version, "of_tomorrow": 1}))
        with pytest.raises(
            CacheError, match=rf"manifest.json: format_version {version} is not 1, the one this version reads; use the version"
        ):
            read_manifest(cache)


def test_a_pre_release_is_refused(cache):
    cache.write_bytes(MANIFEST, b'{"format_version": 0, "codec": "plain"}')  # they had no seal
    with pytest.raises(CacheError, match=r"format_version 0 is of a pre-release .* capture it again under another name"):
        read_manifest(cache)


def test_a_version_edited_by_hand_is_named(cache, documents):
    write_cache(cache, documents, per_shard=5)
    cache.write_bytes(MANIFEST, cache.read_bytes(MANIFEST).replace(b'"format_version": 1', b'"format_version": 99'))
    with pytest.raises(CacheError, match="says format_version 99 and does not match its seal"):
        read_manifest(cache)


def test_verify_names_each_file_that_differs(tmp_path, documents):
    """A cache without stage one's own records, which are named too."""
    cache = LocalStore(tmp_path)
    shards = write_cache(cache, documents, per_shard=5, name="ranks")
    always = {"rule.json", "teacher.json", "vocabulary.json"}
    assert {bad.file for bad in verify(cache, deep=True).bad} == always
    _flip_payload(cache, shards[1])
    (tmp_path / sidecar_name("train", 2)).unlink()
    flip_bit(tmp_path / "vocabulary.arrow")
    assert {bad.file for bad in verify(cache).bad} == always | {"shards/train-00002.json"}
    deep = verify(cache, deep=True)
    assert {bad.file for bad in deep.bad} == always | {"shards/train-00002.json", shards[1].payload.name, "vocabulary.arrow"}
    assert {"train-00001", "train-00002", "vocabulary.arrow"} <= {part["shard"] for part in deep.as_json()["bad"]}
    shutil.rmtree(tmp_path / "shards")
    assert {bad.shard for bad in verify(cache).bad} >= {"train-00000", "train-00001", "train-00002"}


def test_verify_decodes_every_document(cache, documents, monkeypatch):
    """What was written wrong has the right hash; a decoder that fails names the payload."""
    write_cache(cache, documents, per_shard=5)
    monkeypatch.setattr(type(codec()), "fill", _fail)
    assert [bad.reason for bad in verify(cache, deep=True).bad if bad.file.endswith(".arrow")] == ["cannot be read (no such row)"] * 3


def _fail(*arguments):
    raise IndexError("no such row")
