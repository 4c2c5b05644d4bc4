"""A larger range adds shards and touches none: in the end all is as if the whole had been captured at once."""

import shutil

import pytest
from captures import parquet, shard, take, tree
from tiny_teacher import text, write_teacher

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher.collect_garbage import collect_garbage

MODES = {
    "raw": {},
    "plain": {},
    "ranks": {"mode": "threshold", "c": 0.01, "k": 40},
    "streams": {"mode": "sampled", "c": 1 / 16},
    "clusters": {"temperatures": [1.0, 2.0], "entropy": True},
}
TEXTS = [None if i % 7 == 3 else text(1 + i % 9, i) for i in range(400)]


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    return write_teacher(folder / "teacher"), parquet(folder, TEXTS)


def of(inputs, limit, codec="ranks", **documents):
    """Up to `limit` training documents and 20 of validation, which are all there at 100."""
    layout = {"codec": codec, "calibration_rows": 200, "vocabulary_tokens": 500, "documents_per_shard": 40, "tokens_per_batch": 400}
    validation = {"documents": 20, "every": 5}
    return shard(*inputs, documents={"limit": limit, "validation": validation, **documents}, targets=MODES[codec], cache=layout)


def stamps(cache):
    """Content and time of every file that has to stay."""
    return {name: (data, (cache / name).stat().st_mtime_ns) for name, data in tree(cache).items()}


@pytest.fixture(scope="module", params=MODES)
def extended(request, tmp_path_factory, inputs):
    """A cache of 90 documents, what it was, the same extended to 230, and one of 230 at once."""
    small, at_once = (tmp_path_factory.mktemp(name) / "tiny" for name in ("small", "at_once"))
    take(of(inputs, 90, request.param), small)
    before = stamps(small)
    result = take(of(inputs, 230, request.param), small)
    take(of(inputs, 230, request.param), at_once)
    return small, before, result, at_once


def test_full_shards_keep_their_bytes_and_their_times(extended):
    cache, before, result, _ = extended
    after = stamps(cache)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {"manifest.json", "rule.json", "shards/train-00002.json"}  # 90 is no multiple of 40
    assert (result.shards_reused, result.shards_written) == (3, 4)


def test_everything_equals_a_capture_at_once(extended):
    cache, before, _, at_once = extended
    after, wanted = tree(cache), tree(at_once)
    (left,) = after.keys() - wanted.keys()  # the payload that was half full, for `gc` to remove
    assert left.startswith("shards/train-00002-") and left in before
    assert {name: data for name, data in after.items() if name != left} == wanted
    assert verify(open_store(cache), deep=True).bad == []


def test_an_open_reader_goes_on_and_a_new_one_sees_more(tmp_path, inputs):
    take(of(inputs, 30), tmp_path)
    older = LogitCache.open(tmp_path)
    first = older[0].token_ids.tolist()
    take(of(inputs, 50), tmp_path)
    assert [len(older), len(LogitCache.open(tmp_path))] == [30, 50]
    assert older[0].token_ids.tolist() == first
    assert older[29].token_ids.tolist() == LogitCache.open(tmp_path)[29].token_ids.tolist()


def test_after_a_full_last_shard_none_is_redone(tmp_path, inputs):
    take(of(inputs, 80), tmp_path / "a")
    result = take(of(inputs, 90), tmp_path / "a")
    assert (result.shards_reused, result.shards_written) == (3, 1)
    take(of(inputs, 90), tmp_path / "b")
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_a_smaller_range_changes_nothing(tmp_path, inputs):
    take(of(inputs, 50), tmp_path)
    before = stamps(tmp_path)
    result = take(of(inputs, 30), tmp_path)
    assert stamps(tmp_path) == before
    assert result.manifest.splits["train"].limit == 50


def test_training_alone_may_be_extended(tmp_path, inputs):
    """The validation set is full by then, and so what it would be under any limit."""
    take(of(inputs, 90), tmp_path / "a")
    take(of(inputs, 130), tmp_path / "a", split="train")
    assert {name: split.limit for name, split in read_manifest(open_store(tmp_path / "a")).splits.items()} == {
        "train": 130,
        "validation": 130,
    }
    take(of(inputs, 130), tmp_path / "b")
    collect_garbage(open_store(tmp_path / "a"))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    assert take(of(inputs, 130), tmp_path / "a").shards_written == 0


def test_a_validation_set_that_is_not_full_says_how_far_it_goes(tmp_path, inputs):
    take(of(inputs, 30), tmp_path / "a")
    assert read_manifest(open_store(tmp_path / "a")).splits["validation"].documents == 8
    take(of(inputs, 130), tmp_path / "a", split="train")
    assert {name: split.limit for name, split in read_manifest(open_store(tmp_path / "a")).splits.items()} == {
        "train": 130,
        "validation": 30,
    }
    take(of(inputs, 130), tmp_path / "a")
    take(of(inputs, 130), tmp_path / "b")
    collect_garbage(open_store(tmp_path / "a"))
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_skipped_documents_at_the_end_are_counted_once(tmp_path, inputs):
    """Whichever split is captured first, every document is there or was skipped."""
    texts = [*TEXTS[:40], None, " ", None]
    manifest = of((inputs[0], parquet(tmp_path, texts)), 1000)
    trees = []
    for first in ("validation", "train", "all"):
        take(manifest, tmp_path / first, split=first)
        take(manifest, tmp_path / first)
        trees.append(tree(tmp_path / first))
        splits = read_manifest(open_store(tmp_path / first)).splits.values()
        assert sum(split.documents + sum(split.skipped.values()) for split in splits) == len(texts)
    assert trees[0] == trees[1] == trees[2]


def test_the_vocabulary_stays_and_a_codec_that_was_chosen_too(tmp_path, inputs):
    """auto would mean clusters for the larger range; the cache is what it is."""

    def auto(limit):
        return of(inputs, limit).model_copy(
            update={"cache": of(inputs, limit).cache.model_copy(update={"codec": "auto", "calibration_rows": 60})}
        )

    take(auto(60), tmp_path / "a")
    vocabulary = (tmp_path / "a" / "vocabulary.arrow").read_bytes()
    take(auto(230), tmp_path / "a")
    take(auto(230), tmp_path / "b")
    codecs = [read_manifest(open_store(tmp_path / name)).codec for name in "ab"]
    assert codecs == ["ranks", "clusters"]
    assert (tmp_path / "a" / "vocabulary.arrow").read_bytes() == vocabulary
    assert verify(open_store(tmp_path / "a"), deep=True).bad == []


def test_an_extension_needs_the_documents_it_began_with(tmp_path, pipeline, inputs):
    manifest = of(inputs, 30)
    take(manifest, tmp_path / "artifacts/caches/tiny")
    before = stamps(tmp_path / "artifacts/caches/tiny")
    other = parquet(tmp_path, [text(3, i) for i in range(100)], "other.parquet")
    for setting in (f"documents.files={other}", f"teacher.model={write_teacher(tmp_path / 'other', seed=1)}"):
        code, _, err = pipeline("cache-teacher", "--shard", "tiny", "--set", "documents.limit=50", "--set", setting)
        assert code == 2 and "was made with" in err, err
    assert stamps(tmp_path / "artifacts/caches/tiny") == before
    shutil.rmtree(tmp_path / "other")
    code, _, err = pipeline("cache-teacher", "--shard", "tiny", "--set", "documents.limit=50")
    assert code == 0, err


def test_the_rule_of_a_smaller_command_that_was_started_beside_it_is_mended(inputs, tmp_path):
    """It read the folder before the larger one had finished, and wrote its rule after: found by verify, mended by the next capture."""
    larger, smaller = open_store(tmp_path / "larger"), open_store(tmp_path / "smaller")
    take(of(inputs, 60), larger)
    take(of(inputs, 30), smaller)
    whole, stale, of_larger = tree(larger), smaller.read_bytes("rule.json"), larger.read_bytes("rule.json")
    larger.write_bytes("rule.json", stale)
    assert {bad.file for bad in verify(larger).bad} == {"rule.json"}
    take(of(inputs, 60), larger)
    assert tree(larger) == whole
    smaller.write_bytes("rule.json", of_larger)  # the other way round it is an extension that was stopped: it stays
    take(of(inputs, 30), smaller)
    assert smaller.read_bytes("rule.json") == of_larger
