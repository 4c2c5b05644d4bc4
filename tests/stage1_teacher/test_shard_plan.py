"""Dealing documents to splits and shards is a function of their positions: nothing lost, nothing twice (field cases 1, 3, 6)."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract.manifest.shard import Documents
from stage1_teacher.documents.base import RawDocument
from stage1_teacher.shard_plan import ShardPlan, split_of

BOTH = ("train", "validation")
streams = st.lists(st.sampled_from(["kept", "kept", "kept", "null", "empty", "undecodable"]), max_size=60)
rules = st.builds(
    lambda limit, count, every: Documents.model_validate(
        {"source": "parquet", "limit": limit, "validation": {"documents": count, "every": every}}
    ),
    st.integers(1, 40),
    st.integers(1, 6),
    st.integers(2, 7),
)


def raw(stream):
    return [
        RawDocument(f"text {i}", f"row {i}") if kind == "kept" else RawDocument(None, f"row {i}", kind) for i, kind in enumerate(stream)
    ]


def units_of(stream, documents, per_shard, wanted=BOTH):
    return list(ShardPlan(raw(stream), documents, per_shard, wanted))


def texts(units, split):
    return [text for unit in units if unit.split == split for text in unit.texts]


def read_until_the_limit(stream, documents):
    """What has to be read: everything up to the last training document under the limit."""
    kept = train = 0
    for position, kind in enumerate(stream):
        if kind == "kept":
            train += split_of(kept, documents) == "train"
            kept += 1
            if train == documents.limit:
                return stream[: position + 1]
    return stream


@settings(max_examples=300, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_every_kept_document_once_and_in_order(stream, documents, per_shard):
    units = units_of(stream, documents, per_shard)
    read = read_until_the_limit(stream, documents)
    kept = [f"text {i}" for i, kind in enumerate(read) if kind == "kept"]
    train, validation = texts(units, "train"), texts(units, "validation")
    assert sorted(train + validation) == sorted(kept)
    assert train == [text for text in kept if text in set(train)]
    assert validation == [text for text in kept if text in set(validation)]
    assert len(train) <= documents.limit
    assert len(validation) <= documents.validation.documents


@settings(max_examples=300, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_validation_is_a_function_of_position(stream, documents, per_shard):
    validation = texts(units_of(stream, documents, per_shard), "validation")
    kept = [f"text {i}" for i, kind in enumerate(read_until_the_limit(stream, documents)) if kind == "kept"]
    assert validation == kept[:: documents.validation.every][: documents.validation.documents]


@settings(max_examples=200, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_shards_are_full_but_the_last(stream, documents, per_shard):
    units = units_of(stream, documents, per_shard)
    for split in BOTH:
        mine = [unit for unit in units if unit.split == split]
        assert [unit.index for unit in mine] == list(range(len(mine)))
        assert all(len(unit.texts) == per_shard for unit in mine[:-1])
        assert all(0 < len(unit.texts) <= per_shard for unit in mine)
        assert all(len(unit.texts) == len(unit.origins) for unit in mine)


@settings(max_examples=300, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_skips_add_up_to_what_was_read(stream, documents, per_shard):
    plan = ShardPlan(raw(stream), documents, per_shard, BOTH)
    for _ in range(2):  # a plan may be gone through again
        counted = sum((unit.skipped for unit in plan), Counter()) + plan.trailing
        assert counted == Counter(kind for kind in read_until_the_limit(stream, documents) if kind != "kept")


@settings(max_examples=300, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_trailing_skips_are_those_of_a_source_that_ended_before_the_limit(stream, documents, per_shard):
    last = max((position for position, kind in enumerate(stream) if kind == "kept"), default=-1)
    for wanted in (BOTH, ["train"], ["validation"]):
        plan = ShardPlan(raw(stream), documents, per_shard, wanted)
        list(plan)
        exhausted = read_until_the_limit([*stream, "kept"], documents)[len(stream) :] == ["kept"]
        assert plan.trailing == (Counter(stream[last + 1 :]) if exhausted else Counter())


@settings(max_examples=200, deadline=None)
@given(streams, rules, st.integers(1, 7))
def test_a_split_alone_is_the_same_documents(stream, documents, per_shard):
    both = units_of(stream, documents, per_shard)
    for split in BOTH:
        alone = units_of(stream, documents, per_shard, [split])
        assert [(unit.index, unit.texts) for unit in alone] == [(unit.index, unit.texts) for unit in both if unit.split == split]


@settings(max_examples=200, deadline=None)
@given(streams, rules, st.integers(1, 7), st.integers(1, 20))
def test_a_larger_limit_touches_no_full_shard(stream, documents, per_shard, more):
    larger = documents.model_copy(update={"limit": documents.limit + more})
    before, after = units_of(stream, documents, per_shard), units_of(stream, larger, per_shard)
    grown = {(unit.split, unit.index): unit for unit in after}
    for unit in before:
        if len(unit.texts) == per_shard:
            assert grown[unit.split, unit.index] == unit
        assert grown[unit.split, unit.index].texts[: len(unit.texts)] == unit.texts


def test_reading_stops_at_the_limit():
    rows = iter(raw(["kept"] * 100))
    documents = Documents.model_validate({"source": "parquet", "limit": 4, "validation": {"documents": 1}})
    list(ShardPlan(rows, documents, 4, BOTH))
    assert next(rows).text == "text 5"


def test_a_full_last_shard_says_nothing_about_what_follows_it():
    """The limit is the source's end, and what trails there is read only under a larger one."""
    documents = Documents.model_validate({"source": "parquet", "limit": 2, "validation": {"documents": 1}})
    larger = documents.model_copy(update={"limit": 9})
    stream = ["kept", "null", "kept", "kept", "empty", "null"]
    before, after = (ShardPlan(raw(stream), rule, 2, BOTH) for rule in (documents, larger))
    assert list(before) == list(after) and len(list(after)) == 2
    assert before.trailing == Counter() and after.trailing == Counter(empty=1, null=1)


@settings(max_examples=200, deadline=None)
@given(streams, streams, rules, st.integers(1, 7))
def test_a_full_shard_is_the_same_whatever_follows(stream, more, documents, per_shard):
    longer = {(unit.split, unit.index): unit for unit in units_of(stream + more, documents, per_shard)}
    for unit in units_of(stream, documents, per_shard):
        assert len(unit.texts) < per_shard or longer[unit.split, unit.index] == unit
