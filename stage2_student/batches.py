"""Cached documents to tensors: packed, or padded on the right; masks from lengths, one row of targets for each label."""

import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from pipeline.contract.errors import CacheError
from pipeline.contract.logit_cache import LogitCache, PaddedDocuments
from stage2_student.loss import IGNORE_INDEX, SparseTargets


class MicroBatch(NamedTuple):
    """B documents padded to T tokens, or packed one behind the other: then B is 1. A document's last position has no label.

    Attributes:
        input_ids: [B, T] int32 as cached, int64 after `to`.
        labels: [B * T] int64, of token t+1; IGNORE_INDEX where there is no next token.
        targets: rows for every position, [B * T, K]; ids as `input_ids`.
        tokens: labels that count.
        document_lengths: of packed documents, T together; None where they are padded.
    """

    input_ids: Tensor
    labels: Tensor
    targets: SparseTargets
    tokens: int
    document_lengths: tuple[int, ...] | None = None

    def to(self, device: torch.device) -> "MicroBatch":
        """On a device, ids widened there: half the bytes cross the bus."""
        targets = SparseTargets(*(part.to(device, non_blocking=True) for part in self.targets))
        targets = targets._replace(ids=targets.ids.long())
        return self._replace(input_ids=self.input_ids.to(device).long(), labels=self.labels.to(device), targets=targets)


def collate(documents: PaddedDocuments, vocab_size: int, *, packed: bool = False) -> MicroBatch:
    """The tensors of some documents; no document gives one without a label, for a rank with nothing to do.

    Raises:
        CacheError: a token id or an entry outside the student's vocabulary.
    """
    if len(documents.lengths) == 0:
        documents = PaddedDocuments.empty(np.array([1], dtype=np.int32), 1)
    _check_vocabulary(documents, vocab_size)
    time, width = documents.ids.shape[1:]
    labels = np.full(documents.token_ids.shape, IGNORE_INDEX, dtype=np.int64)
    has_label = np.arange(time) < documents.lengths[:, None] - 1
    labels[:, :-1][has_label[:, :-1]] = documents.token_ids[:, 1:][has_label[:, :-1]]
    valid = np.arange(width) < documents.counts[..., None]
    parts = [torch.from_numpy(part) for part in (documents.ids, documents.weights, valid, documents.tail_mass, labels, documents.token_ids)]
    tokens = int((documents.lengths - 1).sum())
    if not packed:
        *targets, rows = (part.flatten(0, 1) for part in parts[:-1])
        return MicroBatch(parts[-1], rows, SparseTargets(*targets), tokens)
    real = torch.from_numpy(np.arange(time) < documents.lengths[:, None])
    *targets, rows, ids = (part[real] for part in parts)
    return MicroBatch(ids[None], rows, SparseTargets(*targets), tokens, tuple(documents.lengths.tolist()))


def _check_vocabulary(documents: PaddedDocuments, vocab_size: int) -> None:
    largest = max(int(documents.token_ids.max()), int(documents.ids.max(initial=0)))
    if largest >= vocab_size:
        raise CacheError(
            f"token id {largest} is outside the student's vocabulary of {vocab_size}; "
            "the cache's teacher folder and its shards do not belong together: run 'pipeline cache verify --deep'"
        )


@dataclass(frozen=True)
class MicroBatches(Dataset[MicroBatch]):
    """`batches[indices]` is the micro-batch of these documents of a cache, the teacher at a temperature."""

    documents: LogitCache
    vocab_size: int
    temperature: float
    packed: bool = False

    def __getitem__(self, indices: Sequence[int]) -> MicroBatch:
        return collate(self.documents.padded(indices, self.temperature), self.vocab_size, packed=self.packed)


def read_ahead(batches: MicroBatches, order: Iterable[Sequence[int]], workers: int) -> Iterator[MicroBatch]:
    """Micro-batches in `order`, made by `workers` processes ahead of the need; by this one when it needs them for 0."""
    if workers == 0:
        return (batches[indices] for indices in order)
    return iter(DataLoader(batches, batch_size=None, sampler=order, num_workers=workers, worker_init_fn=_deaf_to_ctrl_c))


def _deaf_to_ctrl_c(worker: int) -> None:
    """The training process ends its workers; it alone decides on Ctrl-C and SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


def loader_workers(setting: str | int, device: torch.device) -> int:
    """Processes a rank reads ahead with."""
    return (2 if device.type == "cuda" else 0) if setting == "auto" else int(setting)
