"""A step's plan: every document once, equal counts on all ranks, within the budget, balanced, little padding."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.contract.manifest.student import StudentManifest
from stage2_student.micro_batches import Plan, deal, padding_efficiency, plan_packed, plan_padded

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=40)
RANKS = st.integers(1, 5)
BUDGETS = st.integers(1, 2000)


def padded(lengths: list[int], batch: list[int]) -> int:
    return len(batch) * max((lengths[place] for place in batch), default=0)


def total_padded(lengths: list[int], plan: Plan) -> int:
    return sum(padded(lengths, batch) for rank in plan for batch in rank)


@pytest.mark.parametrize("plan_of", [plan_padded, plan_packed])
@given(lengths=LENGTHS, ranks=RANKS, budget=BUDGETS)
def test_every_document_exactly_once(plan_of, lengths, ranks, budget):
    plan = plan_of(lengths, ranks, budget)
    assert len(plan) == ranks
    assert sorted(place for rank in plan for batch in rank for place in batch) == list(range(len(lengths)))


@pytest.mark.parametrize("plan_of", [plan_padded, plan_packed])
@given(lengths=LENGTHS, ranks=RANKS, budget=BUDGETS)
def test_all_ranks_run_the_same_number(plan_of, lengths, ranks, budget):
    counts = {len(rank) for rank in plan_of(lengths, ranks, budget)}
    assert len(counts) == 1 and counts.pop() >= 1


@given(LENGTHS, RANKS, BUDGETS)
def test_the_budget_holds_but_for_a_document_alone(lengths, ranks, budget):
    batches = [batch for rank in plan_padded(lengths, ranks, budget) for batch in rank]
    assert all(padded(lengths, batch) <= budget or len(batch) == 1 for batch in batches)


@given(LENGTHS, RANKS, BUDGETS)
def test_packed_micro_batches_are_full(lengths, ranks, budget):
    """Within the budget but for a document alone; none could take the next one too, but for those of a rank with nothing left."""
    for rank, members in zip(plan_packed(lengths, ranks, budget), deal(lengths, ranks), strict=True):
        sizes = [[lengths[place] for place in batch] for batch in rank]
        assert [place for batch in rank for place in batch] == members
        assert all(sum(batch) <= budget or len(batch) == 1 for batch in sizes)
        assert all(sum(batch) + following[0] > budget for batch, following in pairwise(sizes) if following)


@given(LENGTHS, RANKS, BUDGETS)
def test_no_more_micro_batches_than_the_fullest_rank_needs(lengths, ranks, budget):
    """Greedy over sorted lengths is the fewest there are."""
    fewest = []
    for members in deal(lengths, ranks):
        batches: list[list[int]] = []
        for place in sorted(members, key=lambda place: lengths[place]):
            if not batches or padded(lengths, [*batches[-1], place]) > budget:
                batches.append([])
            batches[-1].append(place)
        fewest.append(len(batches))
    assert len(plan_padded(lengths, ranks, budget)[0]) == max(1, *fewest)


@given(LENGTHS, RANKS, BUDGETS, st.integers(0, 400))
def test_more_micro_batches_only_where_each_saves_its_overhead(lengths, ranks, budget, overhead):
    """On the rank that has the most padded tokens; against plans of every other count."""

    def most(plan: Plan) -> int:
        return max(sum(padded(lengths, batch) for batch in rank) for rank in plan)

    fewest, chosen = plan_padded(lengths, ranks, budget), plan_padded(lengths, ranks, budget, overhead)
    none_to_save = plan_padded(lengths, ranks, budget, 0)
    assert len(fewest[0]) <= len(chosen[0]) <= len(none_to_save[0])
    assert most(chosen) + overhead * len(chosen[0]) <= min(most(p) + overhead * len(p[0]) for p in (fewest, none_to_save))
    assert len({len(rank) for rank in chosen}) == 1
    assert sorted(place for rank in chosen for batch in rank for place in batch) == list(range(len(lengths)))


def test_lengths_like_the_paper_s_waste_little():
    """Log-normal, mean 972, cut at 8,192, 64 documents, the settings' own budget and overhead."""
    random, chosen = np.random.default_rng(0), StudentManifest()
    found = []
    for _ in range(20):
        lengths = np.minimum(random.lognormal(np.log(1006) - 0.5, 1.0, 64), 8192).astype(int).tolist()
        found.append(padding_efficiency(lengths, plan_padded(lengths, 1, chosen.micro_batch_tokens, chosen.micro_batch_overhead)))
    assert np.mean(found) >= 0.95 and min(found) > 0.93


@given(LENGTHS, RANKS)
def test_tokens_balance_over_ranks(lengths, ranks):
    loads = [sum(lengths[place] for place in members) for members in deal(lengths, ranks)]
    assert max(loads) <= min(loads) + max(lengths)


@given(LENGTHS, RANKS, BUDGETS)
def test_the_plan_is_a_function_of_the_lengths(lengths, ranks, budget):
    """Each rank computes it alone, and they must agree."""
    assert plan_padded(lengths, ranks, budget) == plan_padded(tuple(lengths), ranks, budget)


@given(LENGTHS, RANKS, BUDGETS)
def test_never_more_padding_than_one_plain_batch(lengths, ranks, budget):
    plan = plan_padded(lengths, ranks, budget)
    assert total_padded(lengths, plan) <= len(lengths) * max(lengths)
    assert 0 < padding_efficiency(lengths, plan) <= 1
    assert padding_efficiency(lengths, plan) == sum(lengths) / total_padded(lengths, plan)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=9), st.integers(60, 200))
def test_the_cuts_waste_the_least(lengths, budget):
    """Against every way of cutting the sorted documents into as many runs."""
    plan = plan_padded(lengths, 1, budget)
    order = sorted(range(len(lengths)), key=lambda place: (lengths[place], place))
    best = float("inf")
    for cuts in range(2 ** (len(lengths) - 1)):
        runs: list[list[int]] = [[order[0]]]
        for bit, place in enumerate(order[1:]):
            runs = [*runs, [place]] if cuts >> bit & 1 else [*runs[:-1], [*runs[-1], place]]
        if len(runs) <= len(plan[0]) and all(padded(lengths, run) <= budget or len(run) == 1 for run in runs):
            best = min(best, sum(padded(lengths, run) for run in runs))
    assert total_padded(lengths, plan) == best


def test_ragged_documents_waste_less_than_plain_padding():
    lengths = [8, 500, 20, 31, 250, 9, 60, 12]
    assert total_padded(lengths, plan_padded(lengths, 1, 512)) < 0.4 * 8 * 500
    assert plan_padded(lengths, 1, 10**6) == [[sorted(range(8), key=lambda place: lengths[place])]]


def test_one_rank_with_a_single_short_document():
    plan = plan_padded([100, 8], 2, 100)
    assert plan == [[[0]], [[1]]]
    assert plan_padded([100, 40, 30, 20], 2, 30) == [[[0], [], []], [[3], [2], [1]]]


def test_more_ranks_than_documents_leaves_empty_ones():
    assert plan_padded([5], 3, 10) == [[[0]], [[]], [[]]]
