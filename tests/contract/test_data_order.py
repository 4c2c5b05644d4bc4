"""The order of documents: a permutation in every pass, defined once, the same however it is asked for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.contract.data_order import SHARDS_PER_WINDOW, DocumentOrder

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=25)
ORDERS = st.sampled_from(["fixed", "reshuffle"])
LATER = st.sampled_from(["fixed", "reshuffle", "fresh"])
SEEDS = st.integers(0, 2**31)


@st.composite
def orders(draw) -> DocumentOrder:
    """Any shards, and a training range that may end inside one."""
    sizes = draw(SIZES)
    return DocumentOrder(sizes, draw(st.integers(1, sum(sizes))), draw(SEEDS), draw(ORDERS))


def one_pass(order: DocumentOrder, number: int) -> list[int]:
    return order.at(number * order.documents, order.documents).tolist()


@given(orders(), st.integers(0, 50))
def test_each_pass_is_a_permutation_of_exactly_the_range(order, number):
    assert sorted(one_pass(order, number)) == list(range(order.documents))


@given(orders(), st.integers(0, 100), st.integers(0, 100))
def test_a_stretch_is_a_stretch_of_the_passes(order, position, count):
    passes = [index for number in range(1 + (position + count) // order.documents) for index in one_pass(order, number)]
    assert order.at(position, count).tolist() == passes[position : position + count]


@given(orders(), st.integers(0, 60), st.lists(st.integers(0, 15), max_size=6))
def test_batches_of_any_size_give_the_same_stream(order, position, batches):
    got, place = [], position
    for count in batches:
        got += order.at(place, count).tolist()
        place += count
    assert got == order.at(position, sum(batches)).tolist()


@given(orders(), st.integers(0, 100), st.integers(0, 200))
def test_drawn_are_the_distinct_documents_of_a_stretch(order, position, count):
    assert order.drawn(position, count).tolist() == sorted(set(order.at(position, count).tolist()))


@given(SIZES, SEEDS)
def test_it_is_a_function_of_its_arguments(sizes, seed):
    """No state: asked in another order, by another process, later."""
    make = [DocumentOrder(sizes, sum(sizes), seed, "reshuffle") for _ in range(2)]
    assert one_pass(make[0], 3) == (one_pass(make[1], 0), one_pass(make[1], 7), one_pass(make[1], 3))[2]


def test_fixed_repeats_and_reshuffle_does_not():
    fixed, shuffled = (DocumentOrder([10, 10, 10], 25, 42, order) for order in ("fixed", "reshuffle"))
    assert one_pass(fixed, 0) == one_pass(fixed, 1) == one_pass(fixed, 9)
    assert one_pass(shuffled, 0) == one_pass(fixed, 0)
    assert len({tuple(one_pass(shuffled, number)) for number in range(6)}) == 6
    assert one_pass(fixed, 0) != list(range(25))


def test_it_depends_on_the_seed():
    assert len({tuple(one_pass(DocumentOrder([20], 20, seed, "fixed"), 0)) for seed in range(6)}) == 6


@pytest.mark.parametrize("documents", [1, 10, 11, 29])
def test_only_the_documents_of_the_range(documents):
    order = DocumentOrder([10, 10, 10], documents, 0, "reshuffle")
    assert set(order.at(0, 3 * documents)) == set(range(documents))


def test_documents_stay_inside_a_window_of_shards():
    """A remote cache is read in large pieces: no more than a window's shards are open at a time."""
    order = DocumentOrder([5] * 40, 200, 0, "fixed")
    places, window = one_pass(order, 0), 5 * SHARDS_PER_WINDOW
    shards = [{index // 5 for index in places[start : start + window]} for start in range(0, 200, window)]
    assert [len(found) for found in shards] == [SHARDS_PER_WINDOW] * 5
    assert shards != [set(range(start, start + SHARDS_PER_WINDOW)) for start in range(0, 40, SHARDS_PER_WINDOW)]


@given(SIZES, st.integers(1, 40), SEEDS)
def test_a_fresh_pass_goes_through_the_documents_that_follow(sizes, a_pass, seed):
    total = sum(sizes)
    order, fixed = (DocumentOrder(sizes, min(a_pass, total), seed, later) for later in ("fresh", "fixed"))
    assert order.at(0, order.documents).tolist() == fixed.at(0, order.documents).tolist()
    for first in range(0, total, order.documents):
        last = min(total, first + order.documents)
        assert sorted(order.at(first, last - first).tolist()) == list(range(first, last))
    assert order.drawn(0, total).tolist() == list(range(total))


@given(SIZES, st.lists(st.tuples(st.integers(1, 30), LATER, st.integers(0, 40), st.integers(1, 30)), min_size=2, max_size=12), SEEDS)
def test_equal_stretches_are_equal_documents(sizes, chosen, seed):
    """Which is what lets runs share a phase; the other way round only few equal documents are missed."""
    total, found = sum(sizes), {}
    for documents, later, position, count in chosen:
        documents = min(documents, total)
        if later == "fresh" and position + count > total:
            continue
        order = DocumentOrder(sizes, documents, seed, later)
        drawn = order.at(position, count).tolist()
        assert found.setdefault(order.stretch(position, count), drawn) == drawn


def test_stretches_see_through_passes():
    fixed, shuffled, fresh = (DocumentOrder([6, 6], 6, 0, later) for later in ("fixed", "reshuffle", "fresh"))
    assert fixed.stretch(0, 6) == fixed.stretch(6, 6) == shuffled.stretch(0, 6) == fresh.stretch(0, 6)
    assert len({fixed.stretch(6, 6), shuffled.stretch(6, 6), fresh.stretch(6, 6), fixed.stretch(3, 6)}) == 4
