"""From kept entries, chunk after chunk, to documents of the cache."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.packed_rows import unpack
from stage1_teacher.targets import Kept


class ScoredRows:
    """The rows of some documents, chunk after chunk; free slots are left behind on the device."""

    def __init__(self, targets: Targets) -> None:
        self._targets = targets
        self._parts: dict[str, list[np.ndarray]] = {}

    def add(self, kept: Kept) -> None:
        """The next rows."""
        self._append(columns_of(kept))

    def add_packed(self, rows: np.ndarray) -> None:
        """The next rows, as `pack` made them."""
        self._append(unpack(rows, self._targets))

    def _append(self, columns: dict[str, np.ndarray]) -> None:
        for name, values in columns.items():
            self._parts.setdefault(name, []).append(values)

    def documents(self, token_ids: Sequence[np.ndarray]) -> Iterator[CachedDocument]:
        """The documents whose rows were added, in their order."""
        all_rows = {name: parts[0] if len(parts) == 1 else np.concatenate(parts) for name, parts in self._parts.items()}
        if not all_rows:
            all_rows = self._no_rows()
        entry_ends = np.concatenate([[0], np.cumsum(all_rows["counts"], dtype=np.int64)])
        start = 0
        for ids in token_ids:
            rows = slice(start, start + len(ids) - 1)
            entries = slice(entry_ends[rows.start], entry_ends[rows.stop])
            start = rows.stop
            yield self._document(ids, {name: part[entries if name in ("ids", "logprobs") else rows] for name, part in all_rows.items()})

    def _document(self, ids: np.ndarray, part: dict[str, np.ndarray]) -> CachedDocument:
        sampled = self._targets.mode == "sampled"
        return CachedDocument(
            token_ids=ids,
            counts=part["counts"].astype(np.uint8),
            tail_logprob=part["tail_logprob"][:, 0],
            label_logprob=part["label_logprob"],
            ids=part["ids"],
            logprobs=part["logprobs"],
            drawn=part["drawn"].astype(np.uint8) if sampled else None,
            entropy=part["entropy"],
            other_tails={tau: part["tail_logprob"][:, 1 + n] for n, tau in enumerate(self._targets.other_temperatures)},
            tail_square=part["tail_square"].astype(np.float64) if sampled else None,
        )

    def _no_rows(self) -> dict[str, np.ndarray]:
        none = np.zeros(0, dtype=np.float32)
        tails = np.zeros((0, 1 + len(self._targets.other_temperatures)), dtype=np.float32)
        whole = {name: np.zeros(0, dtype=np.int64) for name in ("counts", "drawn")}
        return {"ids": np.zeros(0, dtype=np.int32), "logprobs": none, "label_logprob": none, "entropy": none, "tail_square": none} | {
            "tail_logprob": tails,
            **whole,
        }


def columns_of(kept: Kept) -> dict[str, np.ndarray]:
    """Arrays by name, entries flat; free slots are left behind on the device."""
    filled = torch.arange(kept.ids.shape[1], device=kept.ids.device) < kept.counts[:, None]
    flat = {"ids": kept.ids[filled].to(torch.int32), "logprobs": kept.logprobs[filled]}
    rows = {name: getattr(kept, name) for name in ("counts", "drawn", "tail_logprob", "label_logprob", "entropy", "tail_square")}
    return {name: values.cpu().numpy() for name, values in (flat | rows).items()}
