"""A cache is identified by the rule it was made by: each field counts, workers and limits do not, content beats names."""

import pytest

from pipeline.contract.errors import CacheError
from pipeline.contract.fingerprint import declared_identity, fingerprint, first_difference, require_same
from pipeline.contract.manifest.overrides import merge, nested
from pipeline.contract.manifest.shard import ShardManifest

BASE = {
    "name": "tiny",
    "teacher": {"model": "/teachers/a", "revision": "r1"},
    "documents": {"source": "parquet", "files": ["a.parquet"], "limit": 8, "validation": {"documents": 2, "every": 4}},
}
CONTENT = {"teacher.files": {"w": "1"}, "tokenizer.files": {"t": "1"}, "documents.content": {"f": "1"}}
FIELDS = {
    "teacher.model": "/teachers/b",
    "teacher.revision": "r2",
    "teacher.dtype": "bfloat16",
    "documents.source": "jsonl",
    "documents.files": ["b.parquet"],
    "documents.packages": {"numpy": "2"},
    "documents.column": "body",
    "documents.undecodable": "skip",
    "documents.duplicates": "drop",
    "documents.max_length": 100,
    "documents.separator": "</s>",
    "documents.validation.documents": 3,
    "documents.validation.every": 5,
    "targets.mode": "threshold",
    "targets.k": 8,
    "targets.temperatures": [1.0, 2.0],
    "targets.entropy": True,
    "engine": "vllm",
    "cache.documents_per_shard": 16,
}
NOT_THE_RULE = {
    "name": "other",
    "about": "words",
    "documents.limit": 9_600_000,
    "student": {"steps": 3},
    "cache.rows_per_chunk": 7,
    "cache.tokens_per_batch": 77,
    "cache.threads": 1,
    "cache.vocabulary_tokens": 5,
    "cache.calibration_rows": 5,
    "cache.tensor_parallel": 2,  # of vLLM
    "targets.c": 1 / 64,  # of topk
}
NAMES = {"teacher.model", "teacher.revision", "documents.files", "documents.packages"}


def declared(**changes):
    return declared_identity(ShardManifest.model_validate(merge(BASE, nested(changes))))


@pytest.mark.parametrize("field", FIELDS)
def test_each_declared_field_changes_the_fingerprint(field):
    changed = declared(**{field: FIELDS[field]})
    assert changed[field] == FIELDS[field]
    assert fingerprint(changed) != fingerprint(declared())
    assert first_difference(declared(), changed) == (field, declared()[field], FIELDS[field])
    assert first_difference(changed, declared()) == (field, FIELDS[field], declared()[field])


@pytest.mark.parametrize("field", NOT_THE_RULE)
def test_what_is_not_the_rule_leaves_the_fingerprint(field):
    assert declared(**{field: NOT_THE_RULE[field]}) == declared()


def test_no_field_is_forgotten_here():
    assert set(declared()) == set(FIELDS) | {"format_version"}
    assert not any("worker" in key or "limit" in key or "executor" in key for key in declared())


def test_vllms_settings_count_where_it_is_the_engine():
    """A cache that was made before they were written down is not refused for want of them."""
    with_vllm = declared(engine="vllm")
    added = {"engine.head_dtype": "float32", "engine.prefix_caching": False, "cache.tensor_parallel": 1}
    assert with_vllm == declared() | {"engine": "vllm"} | added
    pair = declared(**{"engine": "vllm", "cache.tensor_parallel": 2})
    assert first_difference(with_vllm, pair) == ("cache.tensor_parallel", 1, 2)
    assert first_difference(declared() | {"engine": "vllm"}, pair) is None


@pytest.mark.parametrize("key", sorted(CONTENT))
def test_content_changes_the_fingerprint(key):
    assert fingerprint(declared() | CONTENT) != fingerprint(declared() | CONTENT | {key: {"x": "2"}})
    assert first_difference(declared() | CONTENT, declared() | CONTENT | {key: {"x": "2"}})[0] == key


@pytest.mark.parametrize("field", sorted(NAMES))
def test_content_decides_over_names(field):
    renamed = declared(**{field: FIELDS[field]}) | CONTENT
    assert fingerprint(renamed) == fingerprint(declared() | CONTENT)
    assert first_difference(declared() | CONTENT, renamed) is None
    assert first_difference(declared() | CONTENT, declared(**{field: FIELDS[field]}))[0] == field  # not known here: the name decides


def test_other_fields_count_whatever_the_content():
    for field in sorted(set(FIELDS) - NAMES):
        assert fingerprint(declared(**{field: FIELDS[field]}) | CONTENT) != fingerprint(declared() | CONTENT), field


def test_the_order_of_keys_does_not_count():
    assert fingerprint(dict(reversed((declared() | CONTENT).items()))) == fingerprint(declared() | CONTENT)


def test_a_refusal_names_field_both_values_and_the_next_move():
    wanted = declared(**{"documents.max_length": 100, "targets.k": 8})
    with pytest.raises(CacheError) as caught:
        require_same(declared(), wanted, "caches/tiny", "make another")
    message = str(caught.value)
    assert message.startswith(
        "caches/tiny: was made with documents.max_length=8192, the manifest says documents.max_length=100; make another"
    )
    assert "targets.k" not in message


def test_a_long_value_is_told_by_its_hash():
    theirs, ours = ({"documents.content": {str(i): digit * 32 for i in range(100)}} for digit in "ab")
    with pytest.raises(CacheError) as caught:
        require_same(theirs, ours, "caches/tiny", "make another")
    assert len(str(caught.value)) < 500
    assert str(caught.value).count("(hash ") == 2


@pytest.mark.parametrize(("mode", "heeded"), [("topk", {"k"}), ("threshold", {"k", "c"}), ("sampled", {"c"})])
def test_a_mode_counts_what_it_heeds(mode, heeded):
    kept = {key.removeprefix("targets.") for key in declared(**{"targets.mode": mode}) if key.startswith("targets.")}
    assert kept == heeded | {"mode", "temperatures", "entropy"}


def test_temperatures_are_a_set_with_one():
    assert declared(**{"targets.temperatures": [2.0]}) == declared(**{"targets.temperatures": [2.0, 1.0]})


def test_a_codec_counts_where_it_is_chosen():
    """auto is decided by the first capture, which writes down what it chose."""
    assert "cache.codec" not in declared()
    assert declared(**{"cache.codec": "ranks"})["cache.codec"] == "ranks"
    captured = declared() | {"cache.codec": "ranks"}
    assert first_difference(captured, declared()) is None
    assert first_difference(captured, declared(**{"cache.codec": "clusters"})) == ("cache.codec", "ranks", "clusters")


def test_equal_rules_pass():
    require_same(declared() | CONTENT, declared(**{"documents.limit": 99}) | CONTENT, "caches/tiny", "")
