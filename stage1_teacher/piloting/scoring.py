"""One pass of the teacher over a pilot's documents, from which every kind of targets is made."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import MAX_KEPT_ENTRIES, Targets
from stage1_teacher.engines.base import ScoringError, TeacherEngine
from stage1_teacher.piloting.narrow import narrow

AT_ONCE = 16
TIMED_SHARE = 4

OnScored = Callable[[int, int, float], None]
"""Called with the documents scored, those wanted, and the seconds it took so far."""


@dataclass(frozen=True)
class Scored:
    """Documents with as many entries a row as a cache can hold, and their samples by c."""

    widest: list[CachedDocument]
    samples: dict[float, list[CachedDocument]]

    def under(self, targets: Targets) -> list[CachedDocument]:
        """The documents as the engine would score them for one of the targets that they were scored for."""
        if targets.mode == "sampled":
            return self.samples[targets.c]
        return [narrow(document, targets.k, targets.c if targets.mode == "threshold" else 0.0) for document in self.widest]


def score_for(
    engine: TeacherEngine, documents: Sequence[np.ndarray], origins: Sequence[str], targets: Sequence[Targets], on_scored: OnScored
) -> Scored:
    """Score documents once for all of `targets`.

    Raises:
        TeacherError: naming the origin of a document that cannot be scored.
    """
    samples = [each for each in targets if each.mode == "sampled"]
    others = [each for each in targets if each.mode != "sampled"]
    widest = others[0].model_copy(update={"mode": "topk", "k": min(MAX_KEPT_ENTRIES, engine.vocab_size)})
    scored: list[list[CachedDocument]] = [[] for _ in (widest, *samples)]
    started = time.monotonic()
    for start in range(0, len(documents), AT_ONCE):
        try:
            parts = engine.score_many(documents[start : start + AT_ONCE], [widest, *samples])
        except ScoringError as error:
            raise TeacherError(f"{origins[start + error.position]}: {error.problem}") from None
        for found, part in zip(scored, parts, strict=True):
            found += part
        on_scored(len(scored[0]), len(documents), time.monotonic() - started)
    return Scored(scored[0], {each.c: found for each, found in zip(samples, scored[1:], strict=True)})


def measure_rate(engine: TeacherEngine, documents: Sequence[np.ndarray]) -> tuple[int, float]:
    """Target tokens a second of a warm engine for the shard's own targets alone, and how many were timed: one document in four."""
    timed = documents[::TIMED_SHARE]
    tokens = sum(len(ids) - 1 for ids in timed)
    started = time.monotonic()
    engine.score(timed)
    return tokens, tokens / (time.monotonic() - started)
