"""The audited rows: every document is scored live three times, and three sides of it are held against the first scoring."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.reader import LogitCache
from pipeline.contract.logit_cache.schema import CachedDocument
from stage1_teacher.auditing.differences import Differences, differences, further, of_sample, total_variation
from stage1_teacher.auditing.sides import cached_side, certain, coded_side, scored_side
from stage1_teacher.engines.base import ScoringError, TeacherEngine

OnScored = Callable[[int, int], None]
"""Called with how many of the documents are compared, and how many are wanted."""


@dataclass(frozen=True)
class Compared:
    """Rows of documents, [R] each: where they are, and how far three sides are from the live one.

    Attributes:
        document: index in the split.
        live: the teacher's `entropy`, and for a sample what `of_sample` gives.
        control: the teacher scored live twice more, in other batches: at every row the further one.
        coded: the live rows, coded and restored.
        cached: what the cache gives back.
        moved: of samples, total variation between cached and coded; `moved_live` the same between two coded live scorings.
    """

    document: np.ndarray
    row: np.ndarray
    live: Differences
    control: Differences
    coded: Differences
    cached: Differences
    moved: np.ndarray
    moved_live: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Compared"]) -> "Compared":
        """All rows of several."""
        return cls(**{name: _join([vars(part)[name] for part in parts]) for name in vars(parts[0])})


def _join(parts: Sequence[Any]) -> Any:
    """Arrays, or dictionaries of them."""
    first = parts[0]
    return {key: _join([part[key] for part in parts]) for key in first} if isinstance(first, dict) else np.concatenate(parts)


def score_live(engine: TeacherEngine, cache: LogitCache, indices: Sequence[int]) -> list[CachedDocument]:
    """Documents of the cache, scored in the capture's kind of batches.

    Raises:
        TeacherError: naming the document that the teacher cannot score.
    """
    try:
        return engine.score([np.array(cache[index].token_ids) for index in indices], cache.targets)
    except ScoringError as error:
        raise TeacherError(f"{cache.store}: {cache.split} document {indices[error.position]}: {error.problem}") from None


def compare_rows(
    engine: TeacherEngine, cache: LogitCache, indices: Sequence[int], live: Sequence[CachedDocument], on_scored: OnScored
) -> Compared:
    """Score the documents in pairs and alone too, and hold everything against `live`.

    With a body in bfloat16 most batches give a document the same values, and some give it others: one control may see none of it.
    """
    parts = []
    for start in range(0, len(indices), 2):
        two = live[start : start + 2]
        pair = engine.score([document.token_ids for document in two], cache.targets)
        for index, document, other in zip(indices[start : start + 2], two, pair, strict=True):
            alone = engine.score([document.token_ids], cache.targets)
            parts.append(_compare(cache, index, document, [other, *alone]))
            on_scored(len(parts), len(indices))
    return Compared.join(parts)


def _compare(cache: LogitCache, index: int, live: CachedDocument, again: Sequence[CachedDocument]) -> Compared:
    temperatures, targets = cache.targets.all_temperatures, cache.targets
    sampled, kept = targets.mode == "sampled", certain(live)
    ours, coded = scored_side(live, temperatures), coded_side(cache.codec, live, temperatures)
    cached, coded_again = cached_side(cache, index, temperatures), [coded_side(cache.codec, each, temperatures) for each in again]
    assert live.entropy is not None  # an engine gives it, a cache may be without
    return Compared(
        document=np.full(live.tokens, index),
        row=np.arange(live.tokens),
        live={"entropy": live.entropy} | (of_sample(live, ours.views[1.0].part(kept), targets.c) if sampled else {}),
        control=further([differences(ours, scored_side(each, temperatures), kept, sampled) for each in again]),
        coded=differences(ours, coded, kept, sampled),
        cached=differences(ours, cached, kept, sampled),
        moved=total_variation(coded.views[1.0], cached.views[1.0]),
        moved_live=np.max([total_variation(coded.views[1.0], each.views[1.0]) for each in coded_again], axis=0),
    )
