"""Deal a step's documents to ranks and micro-batches, from lengths alone: every rank computes the same plan, none asks another.

Plain right-padding of a whole batch wastes most of the compute (lengths vary a hundredfold). Documents are dealt so that
tokens balance over ranks, sorted by length, and cut where the padding is least. All ranks get the same number of
micro-batches, or collectives would hang; short ranks run empty ones.
"""

from collections.abc import Sequence

import numpy as np

Plan = list[list[list[int]]]
"""[rank][micro-batch][document], as places in the step; a micro-batch may be empty."""


def plan_step(lengths: Sequence[int], ranks: int, token_budget: int) -> Plan:
    """Cut documents of `lengths` (input tokens) into micro-batches of at most `token_budget` padded tokens.

    A document longer than the budget gets a micro-batch of its own.
    """
    dealt = deal(lengths, ranks)
    count = max(len(greedy_cut(lengths, members, token_budget)) for members in dealt)
    return [_cut(lengths, members, count, token_budget) for members in dealt]


def deal(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Documents of each rank, sorted by length: longest first, each to the rank with the fewest tokens so far."""
    load = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        rank = min(range(ranks), key=lambda rank: (load[rank], rank))
        dealt[rank].append(place)
        load[rank] += lengths[place]
    return [sorted(members, key=lambda place: (lengths[place], place)) for members in dealt]


def greedy_cut(lengths: Sequence[int], members: list[int], budget: int) -> list[list[int]]:
    """The fewest consecutive runs of sorted `members` that keep each within the budget; linear, but not the least padding."""
    runs: list[list[int]] = []
    for place in members:
        if not runs or (len(runs[-1]) + 1) * lengths[place] > budget:
            runs.append([])
        runs[-1].append(place)
    return runs


def _cut(lengths: Sequence[int], members: list[int], count: int, budget: int) -> list[list[int]]:
    """Cut sorted `members` into at most `count` runs with the least padded tokens, then fill up with empty ones."""
    size = np.array([lengths[place] for place in members])
    n = len(members)
    cost = np.full((count + 1, n + 1), np.inf)  # cost[m, i]: the first i documents in m runs
    came_from = np.zeros((count + 1, n + 1), dtype=int)
    cost[0, 0] = 0
    for m in range(1, count + 1):
        for i in range(1, n + 1):
            starts = np.arange(i)
            padded = (i - starts) * size[i - 1]
            total = np.where((padded <= budget) | (starts == i - 1), cost[m - 1, :i] + padded, np.inf)
            came_from[m, i], cost[m, i] = int(total.argmin()), total.min()
    runs: list[list[int]] = []
    m, i = int(cost[:, n].argmin()), n
    while m > 0:
        runs.insert(0, members[came_from[m, i] : i])
        m, i = m - 1, int(came_from[m, i])
    return runs + [[] for _ in range(count - len(runs))]


def padding_efficiency(lengths: Sequence[int], plan: Plan) -> float:
    """Real input tokens over padded ones, all ranks and micro-batches together."""
    padded = sum(len(batch) * max(lengths[place] for place in batch) for rank in plan for batch in rank if batch)
    return sum(lengths) / padded
