"""`documents.duplicates: drop`: the first of equal texts stays, wherever the others lie (field case 1)."""

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from corpora import documents, fineweb, jsonl, opened
from hypothesis import given, settings
from hypothesis import strategies as st

from stage1_teacher.documents import duplicates
from stage1_teacher.documents.base import RawDocument
from stage1_teacher.documents.duplicates import SeenTexts, WithoutDuplicates
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.shard_plan import ShardPlan

ROOT = Path(__file__).parents[2]
REAL_DIGEST = xxhash.xxh3_128_digest
VALUES = ["one", None, "two", "one", " ", " ", b"caf\xe9", b"caf\xe9", "two ", "One", "two"]


def test_the_first_stays_and_the_numbers_are_those_of_all_rows(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "a.parquet", VALUES)
    (tmp_path / "b.parquet").write_bytes(path.read_bytes())
    found = list(opened("parquet", tmp_path, duplicates="drop", undecodable="replace"))
    kept = {0: "one", 2: "two", 6: "caf\ufffd", 8: "two ", 9: "One"}
    assert {number: document.text for number, document in enumerate(found) if document.text is not None} == kept
    reasons = ["null", "duplicate", "empty", "empty", "duplicate", "duplicate"]
    assert [document.skip for document in found[: len(VALUES)] if document.skip] == reasons
    assert found[3] == RawDocument(None, f"{path} row 3", "duplicate")
    assert Counter(document.skip for document in found[len(VALUES) :]) == {"duplicate": 8, "empty": 2, "null": 1}


def test_keep_is_the_default_and_the_identity_is_that_of_the_files(tmp_path: Path) -> None:
    path = fineweb(tmp_path / "a.parquet", ["one", "one"])
    kept, dropped = opened("parquet", path), opened("parquet", path, duplicates="drop")
    assert [document.text for document in kept] == ["one", "one"] and kept.identity() == dropped.identity()
    recorded = {"files": [{"name": "a.parquet", "sha256": ""}]}
    assert "sha256" in dropped.identity(recorded)["files"][0]


def test_it_is_decided_across_files_and_the_same_on_every_pass(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_bytes(jsonl({"text": "same"}, {"text": name}, {"text": "same"}))
    source = opened("jsonl", tmp_path, duplicates="drop")
    expected = ["same", "a.jsonl", None, None, "b.jsonl", None]
    assert [document.text for document in source] == [document.text for document in source] == expected


streams = st.lists(st.sampled_from(["a", "b", "c", "dd", "", " ", None]), max_size=40)


@settings(max_examples=300, deadline=None)
@given(streams, st.integers(1, 12), st.integers(2, 5), st.integers(1, 4))
def test_every_raw_document_is_counted_and_a_larger_limit_changes_nothing_before(
    stream: list[str | None], limit: int, every: int, per_shard: int
) -> None:
    raw = [RawDocument(text or None, f"row {i}", None if text else "empty" if text == "" else "null") for i, text in enumerate(stream)]
    rule = documents("parquet", limit=limit, validation={"documents": 2, "every": every}, duplicates="drop")
    larger = rule.model_copy(update={"limit": limit + 5})
    for wanted in (("train", "validation"), ("train",), ("validation",)):
        small, large = (list(ShardPlan(WithoutDuplicates(raw), one, per_shard, wanted)) for one in (rule, larger))
        grown = {(unit.split, unit.index): unit for unit in large}
        assert all(grown[unit.split, unit.index] == unit for unit in small if len(unit.texts) == per_shard)
        texts = [text for unit in large for text in unit.texts]
        assert len(texts) == len(set(texts))
    all_of_it = rule.model_copy(update={"limit": 99})
    plan = ShardPlan(WithoutDuplicates(raw), all_of_it, per_shard, ("train", "validation"))
    units = list(plan)
    skipped = sum((unit.skipped for unit in units), Counter()) + plan.trailing
    assert sum(len(unit.texts) for unit in units) + skipped.total() == len(stream)
    assert skipped == Counter(empty=stream.count(""), null=stream.count(None)) + Counter(
        duplicate=sum(text in stream[:i] for i, text in enumerate(stream) if text)
    )


def narrow(text: bytes) -> bytes:
    """A hash of two values a byte: everything lands in few buckets, and hashes are found across two neighbours all the time."""
    return bytes(byte & 1 for byte in REAL_DIGEST(text))


def answers_as_a_dict(words: list[str], digest: Callable[[bytes], bytes]) -> bool:
    seen, reference = SeenTexts(), dict[bytes, str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(duplicates.xxhash, "xxh3_128_digest", digest)
        return all(seen.add(word) == (reference.setdefault(digest(word.encode()), f"{i}") == f"{i}") for i, word in enumerate(words))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=3), max_size=80))
def test_seen_texts_answers_as_a_dict(words: list[str]) -> None:
    assert answers_as_a_dict(words, REAL_DIGEST) and answers_as_a_dict(words, narrow)


def test_seen_texts_answers_as_a_dict_in_crowded_buckets() -> None:
    assert answers_as_a_dict([str(number % 3000) for number in range(4000)], narrow)


MEMORY = """
import sys
from stage1_teacher.documents.duplicates import SeenTexts
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
before, seen = resident(), SeenTexts()
new = sum(seen.add(f"document {i % 400_000}") for i in range(420_000))
print(new, resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
def test_it_is_dense() -> None:
    ran = subprocess.run([sys.executable, "-c", MEMORY], cwd=ROOT, capture_output=True, text=True, check=True)
    new, grown = map(int, ran.stdout.split())
    assert new == 400_000
    assert grown / new < 48, "bytes a text: a set of 16-byte hashes takes 90"


def test_dropping_reads_no_further_than_asked(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl({"text": "one"}) + b"not JSON\n")
    assert next(iter(open_documents(documents("jsonl", tmp_path, duplicates="drop")))).text == "one"
