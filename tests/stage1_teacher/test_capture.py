"""What stage one writes: rows, separators, splits, skips and counts of a real capture (field cases 3, 7, 8, 10, 17, 18)."""

import json

import numpy as np
import pytest
from captures import COUNTS, MAX_LENGTH, TEXTS, everything, parquet, reference, shard, take, tree, write_shard_yaml
from tiny_teacher import QWEN3_SEPARATOR, QWEN3_VOCAB, write_teacher

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.store import open_store

FAMILIES = [("qwen3", False), ("qwen3", True), ("qwen2", False), ("llama", False), ("llama", True)]
SEPARATOR = 126
KEPT = [count for count in COUNTS if count]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return parquet(tmp_path_factory.mktemp("documents"))


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def captured(tmp_path_factory, teacher, files):
    """The cache of the tiny shard and its manifest."""
    cache = tmp_path_factory.mktemp("captured") / "tiny"
    take(shard(teacher, files), cache)
    return cache, read_manifest(open_store(cache))


@pytest.mark.parametrize(("family", "tied"), FAMILIES)
def test_cached_rows_are_a_plain_forwards(tmp_path, files, family, tied):
    teacher = write_teacher(tmp_path / "teacher", family=family, tied=tied)
    take(shard(teacher, files, cache={"codec": "plain"}), tmp_path / "cache")
    documents = everything(tmp_path / "cache")
    assert len(documents) == 17
    for document, exact in zip(documents, reference(teacher, [document.token_ids for document in documents]), strict=True):
        ids, kept = document.ids.reshape(-1, 8), document.logprobs.reshape(-1, 8)
        assert len(ids) == len(exact) == len(document.token_ids) - 1
        np.testing.assert_array_equal(ids[:, 0], exact.argmax(1))
        wanted = np.take_along_axis(exact, ids, 1)
        np.testing.assert_allclose(wanted, -np.sort(-exact, axis=1)[:, :8], atol=1e-6)
        assert (np.abs(kept - wanted) <= 2 * 2.0**-11 * np.abs(wanted).max() + 1e-5).all()  # float16
        np.put_along_axis(exact, ids, -np.inf, 1)
        np.testing.assert_allclose(document.tail_logprob, np.logaddexp.reduce(exact, axis=1), atol=1e-4)


THRESHOLD, WARM = {"mode": "threshold", "c": 0.01, "k": 40}, {"temperatures": [1.0, 2.0], "entropy": True}


@pytest.mark.parametrize("codec", ["raw", "ranks", "clusters"])
@pytest.mark.parametrize("targets", [{}, THRESHOLD, WARM], ids=str)
def test_every_codec_keeps_the_rows_of_its_mode(tmp_path, teacher, files, codec, targets):
    manifest = shard(teacher, files, targets=targets, cache={"codec": codec, "calibration_rows": 100})
    take(manifest, tmp_path)
    documents, mode = everything(tmp_path), manifest.targets
    for document, exact in zip(documents, reference(teacher, [document.token_ids for document in documents]), strict=True):
        for t, row in enumerate(exact):
            ids, logprobs = document.row(t)
            wanted = np.argsort(-row, kind="stable")[: mode.k if mode.mode == "topk" else min(mode.k, int((np.exp(row) >= mode.c).sum()))]
            assert set(ids) == set(wanted)
            np.testing.assert_allclose(np.exp(logprobs), np.exp(row[ids]), atol=0.005, rtol=0.05)
            assert np.exp(logprobs).sum() + document.tail_mass[t] == pytest.approx(1, abs=1e-5)
        if mode.entropy:
            np.testing.assert_allclose(document.entropy, -(np.exp(exact) * exact).sum(1), rtol=1e-3)
            halved = exact / 2 - np.logaddexp.reduce(exact / 2, axis=1, keepdims=True)
            for t in range(document.tokens):
                outside = np.delete(halved[t], document.row(t)[0])
                assert document.other_tails[2.0][t] == pytest.approx(np.logaddexp.reduce(outside), abs=2e-3)


@pytest.mark.parametrize("codec", ["plain", "ranks", "streams", "clusters"])
def test_a_sample_holds_what_is_certain_and_sums_to_one(tmp_path, teacher, files, codec):
    take(shard(teacher, files, targets={"mode": "sampled", "c": 1 / 16}, cache={"codec": codec, "calibration_rows": 100}), tmp_path)
    documents = everything(tmp_path)
    for document, exact in zip(documents, reference(teacher, [document.token_ids for document in documents]), strict=True):
        for t, row in enumerate(np.exp(exact)):
            ids, logprobs = document.row(t)
            weights = dict(zip(ids.tolist(), np.exp(logprobs).tolist(), strict=True))
            assert set(np.flatnonzero(row >= 1 / 16 + 1e-6)) <= set(weights)
            assert all(
                weights[i] == pytest.approx(row[i], abs=1 / 16 if codec in ("streams", "clusters") else 0.01)
                for i in weights
                if row[i] > 1 / 16
            )
            assert sum(weights.values()) == pytest.approx(1, abs=1.01 / 16)
            assert len(weights) <= 17


def test_every_label_has_its_own_logprob(captured, teacher):
    documents = everything(captured[0])
    for document, exact in zip(documents, reference(teacher, [document.token_ids for document in documents]), strict=True):
        labels = document.token_ids[1:]
        np.testing.assert_allclose(document.label_logprob, exact[np.arange(len(labels)), labels], rtol=2.0**-10)


def test_separators_and_truncation(captured):
    lengths = []
    for document in everything(captured[0]):
        truncated = len(document.token_ids) == MAX_LENGTH and document.token_ids[-1] != SEPARATOR
        assert len(document.token_ids) <= MAX_LENGTH
        assert (document.token_ids == SEPARATOR).sum() == (0 if truncated else 1)
        assert truncated or document.token_ids[-1] == SEPARATOR
        lengths.append((len(document.token_ids), truncated))
    wanted = [(min(count + 1, MAX_LENGTH), count >= MAX_LENGTH) for count in KEPT[:17]]
    assert sorted(lengths) == sorted(wanted)
    assert {(24, False), (24, True), (2, False)} <= set(lengths)  # 23 words, 24 words or more, one word


def test_a_document_of_one_token_has_one_row(captured):
    short = [document for document in everything(captured[0]) if len(document.token_ids) == 2]
    assert len(short) == 2
    assert all(document.tokens == 1 and len(document.row(0)[0]) == 8 for document in short)


def test_splits_interleave_and_never_overlap(captured):
    words = [min(count + 1, MAX_LENGTH) for count in KEPT[:17]]
    places = {0, 4, 8}
    validation = LogitCache.open(captured[0], "validation").input_tokens.tolist()
    train = LogitCache.open(captured[0], "train").input_tokens.tolist()
    assert validation == [words[i] for i in sorted(places)]
    assert train == [length for i, length in enumerate(words) if i not in places]


def test_skipped_documents_are_counted_by_reason(captured):
    splits = captured[1].splits
    counts = [split.skipped for split in splits.values()]
    assert sum(part.get("null", 0) for part in counts) == sum(text is None for text in TEXTS[:20]) == 2
    assert sum(part.get("empty", 0) for part in counts) == 1


def test_splits_may_be_captured_apart(tmp_path, teacher, files, captured):
    take(shard(teacher, files), tmp_path, split="validation")
    assert set(read_manifest(open_store(tmp_path)).splits) == {"validation"}
    take(shard(teacher, files), tmp_path, split="train")
    assert tree(tmp_path) == tree(captured[0])
    assert {split: record.documents for split, record in read_manifest(open_store(tmp_path)).splits.items()} == {
        "train": 14,
        "validation": 3,
    }


def test_qwen3_ids_need_18_bits(tmp_path, files):
    teacher = write_teacher(tmp_path / "teacher", vocab_size=QWEN3_VOCAB)
    take(shard(teacher, files, documents={"limit": 3, "validation": {"documents": 1}}), tmp_path / "cache")
    documents, manifest = everything(tmp_path / "cache"), read_manifest(open_store(tmp_path / "cache"))
    assert (manifest.vocab_size, manifest.separator_id) == (QWEN3_VOCAB, QWEN3_SEPARATOR)
    assert any((document.ids > 2**17).any() for document in documents)
    assert any((document.token_ids > 2**17).any() for document in documents)
    assert [document.token_ids[-1] for document in documents if len(document.token_ids) < MAX_LENGTH] == [QWEN3_SEPARATOR] * 2
    for document, exact in zip(documents, reference(teacher, [document.token_ids for document in documents]), strict=True):
        best = np.argsort(-exact, axis=1)[:, :8]
        assert [set(document.row(t)[0]) for t in range(document.tokens)] == [set(row) for row in best]


def test_the_manifest_adds_up(captured):
    cache, manifest = captured
    for name, split in manifest.splits.items():
        documents = [LogitCache.open(cache, name)[i] for i in range(split.documents)]
        assert split.tokens == sum(document.tokens for document in documents)
        assert split.input_tokens == sum(len(document.token_ids) for document in documents)
        assert [shard.index for shard in split.shards] == list(range(len(split.shards)))
    assert not manifest.splits["train"].source_exhausted


def test_documents_that_run_out_are_noted(pipeline, tmp_path, teacher, files):
    yaml = write_shard_yaml(tmp_path, teacher, files, documents={"limit": 100})
    code, out, err = pipeline("cache-teacher", "--shard", yaml, "--json")
    assert code == 0, err
    assert "the documents ended after 15 of documents.limit=100" in err
    assert json.loads(out)["skipped"] == {"empty": 1, "null": 2}
    assert read_manifest(open_store(tmp_path / "artifacts/caches/tiny")).splits["train"].source_exhausted
