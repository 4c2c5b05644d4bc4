"""Deal a step's documents to ranks and micro-batches, from lengths alone: every rank computes the same plan, none asks another.

Documents are dealt so that tokens balance over ranks. Packed ones fill micro-batches up to the budget. Padded ones are sorted by
length and cut where the padding is least: plain right-padding of a whole batch would waste most of the compute (lengths vary
a hundredfold). All ranks get the same number of micro-batches, or collectives would hang; short ranks run empty ones.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Plan = list[list[list[int]]]
"""[rank][micro-batch][document], as places in the step; a micro-batch may be empty."""


def plan_packed(lengths: Sequence[int], ranks: int, token_budget: int) -> Plan:
    """Documents in the order of their lengths, as many to a micro-batch as `token_budget` input tokens hold, and at least one."""
    cuts = [greedy_cut(lengths, members, token_budget, sum) for members in deal(lengths, ranks)]
    count = max(map(len, cuts))
    return [cut + [[]] * (count - len(cut)) for cut in cuts]


def plan_padded(lengths: Sequence[int], ranks: int, token_budget: int, overhead: float = math.inf) -> Plan:
    """Cut documents of `lengths` (input tokens) into micro-batches of at most `token_budget` padded tokens.

    One micro-batch more has to save more than `overhead` padded tokens on the rank that has the most: with none to gain there are
    the fewest that hold the budget. A document longer than the budget gets a micro-batch of its own.
    """
    dealt = deal(lengths, ranks)
    cuts = [LeastPadding([lengths[place] for place in members], token_budget) for members in dealt]
    count = max(len(greedy_cut(lengths, members, token_budget)) for members in dealt)
    while most_padded(cuts, count) - most_padded(cuts, count + 1) > overhead:
        count += 1
    return [_runs(members, cut.widths(count), count) for members, cut in zip(dealt, cuts, strict=True)]


def most_padded(cuts: Sequence["LeastPadding"], count: int) -> float:
    """Padded tokens of the rank that has the most; convex in `count`, as each rank's are."""
    return max(cut.padded(count) for cut in cuts)


def deal(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Documents of each rank, sorted by length: longest first, each to the rank with the fewest tokens so far."""
    load = [0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for place in sorted(range(len(lengths)), key=lambda place: (-lengths[place], place)):
        rank = min(range(ranks), key=lambda rank: (load[rank], rank))
        dealt[rank].append(place)
        load[rank] += lengths[place]
    return [sorted(members, key=lambda place: (lengths[place], place)) for members in dealt]


def padded_tokens(sizes: Sequence[int]) -> int:
    """Of one rectangle that holds documents of these lengths, the last of which is the longest."""
    return len(sizes) * sizes[-1]


def greedy_cut(
    lengths: Sequence[int], members: list[int], budget: int, tokens: Callable[[list[int]], int] = padded_tokens
) -> list[list[int]]:
    """The fewest consecutive runs of sorted `members` that keep the `tokens` of each within the budget; not the least padding."""
    runs: list[list[int]] = []
    for place in members:
        if not runs or tokens([lengths[other] for other in runs[-1]] + [lengths[place]]) > budget:
            runs.append([])
        runs[-1].append(place)
    return runs


class LeastPadding:
    """Sorted documents cut into runs with the least padded tokens, for any number of runs.

    A dynamic programme over the number of runs, a step of it for all documents at once and only when it is asked for.
    """

    def __init__(self, sizes: Sequence[int], budget: int) -> None:
        self._sizes = np.array(sizes, dtype=np.float64)
        self._documents = np.arange(len(sizes))
        widest = int(np.minimum(self._documents + 1, budget // np.maximum(self._sizes, 1)).max(initial=1)) if sizes else 1
        widths = np.arange(1, max(widest, 1) + 1)
        padded = self._sizes[:, None] * widths  # [i, w - 1]: of a run of w documents that ends with document i
        impossible = (widths > 1) & (padded > budget) | (widths > self._documents[:, None] + 1)
        self._padded = np.where(impossible, np.inf, padded)
        self._costs = [np.array([0.0, *[np.inf] * len(sizes)])]  # [m][i]: the first i documents in m runs
        self._last: list[np.ndarray] = []  # [m - 1][i]: width of the last of these runs

    def padded(self, count: int) -> float:
        """Padded tokens of at most `count` runs; inf where so few cannot hold the budget."""
        return float(self._cost(min(count, len(self._sizes)))[-1])

    def widths(self, count: int) -> list[int]:
        """Documents of each run, shortest documents first."""
        left, found = len(self._sizes), []
        for runs in range(min(count, left), 0, -1):
            self._cost(runs)
            found.append(int(self._last[runs - 1][left - 1]))
            left -= found[-1]
        return found[::-1]

    def _cost(self, runs: int) -> np.ndarray:
        while len(self._costs) <= runs:
            before = np.concatenate([np.full(self._padded.shape[1] - 1, np.inf), self._costs[-1][:-1]])
            total = sliding_window_view(before, self._padded.shape[1])[:, ::-1] + self._padded
            best = total.argmin(1)
            self._costs.append(np.concatenate([[np.inf], total[self._documents, best]]))
            self._last.append(best + 1)
        return self._costs[runs]


def _runs(members: list[int], widths: list[int], count: int) -> list[list[int]]:
    """`members` in runs of these widths, filled up with empty ones."""
    ends = np.cumsum([0, *widths]).tolist()
    return [members[start:stop] for start, stop in pairwise(ends)] + [[] for _ in range(count - len(widths))]


def padding_efficiency(lengths: Sequence[int], plan: Plan) -> float:
    """Real input tokens over padded ones, all ranks and micro-batches together."""
    padded = sum(len(batch) * max(lengths[place] for place in batch) for rank in plan for batch in rank if batch)
    return sum(lengths) / padded
