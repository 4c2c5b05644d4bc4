"""One pass of a student over a slice of documents: residuals at its block boundaries and scores of its guesses, a row a token.

Nothing of size tokens x vocabulary exists, and of the hidden states a micro-batch's at once.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pipeline.contract.logit_cache import LogitCache, PaddedDocuments
from pipeline.contract.manifest.student import StudentManifest
from stage2_student.batches import MicroBatch, collate
from stage2_student.diagnostics.slices import Slice
from stage2_student.diagnostics.token_scores import TokenScores, score_tokens
from stage2_student.diagnostics.token_table import TokenTable
from stage2_student.micro_batches import deal, greedy_cut
from stage2_student.model.student import BlockStackForCausalLM

ROWS = 2048
"""Tokens whose residuals are compared in float64 at once."""


@torch.no_grad()
def token_table(
    student: BlockStackForCausalLM, validation: LogitCache, chosen: Slice, settings: StudentManifest, bypass: Collection[int] = ()
) -> TokenTable:
    """Score `student`, without the blocks in `bypass`, on `chosen` documents. The order of rows depends on `chosen` alone."""
    (members,) = deal(chosen.lengths, 1)
    parts = []
    for places in greedy_cut(chosen.lengths, members, settings.micro_batch_tokens):
        documents = [chosen.documents[place] for place in places]
        padded = cut(validation.padded(documents, settings.temperature), np.array([chosen.lengths[place] for place in places]))
        parts.append(_pass(student, padded, np.array(documents), settings, bypass))
    return TokenTable.joined(parts)


def cut(padded: PaddedDocuments, lengths: np.ndarray) -> PaddedDocuments:
    """Keep the first `lengths` [B] tokens of each document; the last one kept has no label."""
    width = int(lengths.max())
    kept = {name: getattr(padded, name)[:, :width] for name in ("token_ids", "counts", "ids", "weights", "tail_mass", "label_logprob")}
    return replace(padded, lengths=lengths.astype(np.int32), **kept)


def _pass(
    student: BlockStackForCausalLM, padded: PaddedDocuments, documents: np.ndarray, settings: StudentManifest, bypass: Collection[int]
) -> TokenTable:
    batch = collate(padded, student.config.vocab_size).to(student.device)
    boundaries: list[Tensor] = []
    scores = student(
        batch.input_ids,
        boundaries=boundaries,
        bypass=bypass,
        head_loss=lambda hidden, weight: score_tokens(hidden.flatten(0, 1), weight, batch.labels, batch.targets, settings),
    )
    places = np.arange(padded.token_ids.shape[1])
    real = np.nonzero((places < padded.lengths[:, None]).ravel())[0]  # [N] of the B * T positions
    at = torch.from_numpy(real).to(student.device)
    streams = [boundary.flatten(0, 1)[at] for boundary in boundaries]  # K + 1 of [N, D]
    turns = [compare(before, after) for before, after in zip(streams, streams[1:])]
    return TokenTable(
        document=np.repeat(documents, padded.lengths),
        position=np.concatenate([places[:length] for length in padded.lengths]),
        token=padded.token_ids.ravel()[real],
        **_scores(batch, scores, at),
        rms=np.stack([_rms(stream) for stream in streams], axis=1),
        angle=np.stack([angle for angle, _ in turns], axis=1),
        change=np.stack([change for _, change in turns], axis=1),
    )


def _scores(batch: MicroBatch, scores: TokenScores, at: Tensor) -> dict[str, np.ndarray]:
    labels = batch.labels[at].clamp_min(-1)
    columns = {"label": labels, "ce": scores.ce[at], "kl": scores.kl[at], "agreement": scores.agreement[at]}
    return {name: column.cpu().numpy() for name, column in columns.items()}


def _rms(stream: Tensor) -> np.ndarray:
    """[N] float64 of [N, D]."""
    parts = [torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64) for rows in stream.split(ROWS)]
    return (torch.cat(parts) / stream.shape[1] ** 0.5).cpu().numpy()


def compare(before: Tensor, after: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Per token [N] of the residuals [N, D] before and after a block: the angle between them over pi, and the relative change.

    The angle is 2 atan2(|u - v|, |u + v|) of unit vectors: an arccos of a cosine near 1 would lose half the digits, and
    give equal vectors an angle.
    """
    angles, changes = [], []
    for x, y in zip(before.split(ROWS), after.split(ROWS), strict=True):
        x, y = x.double(), y.double()
        norms = [torch.linalg.vector_norm(each, dim=-1, keepdim=True) for each in (x, y)]
        tiny = torch.finfo(torch.float64).tiny
        u, v = (each / norm.clamp_min(tiny) for each, norm in zip((x, y), norms, strict=True))
        angles.append(2 / torch.pi * torch.atan2((u - v).norm(dim=-1), (u + v).norm(dim=-1)))
        changes.append((y - x).norm(dim=-1) / (norms[0] + norms[1])[:, 0].clamp_min(tiny))
    return torch.cat(angles).cpu().numpy(), torch.cat(changes).cpu().numpy()
