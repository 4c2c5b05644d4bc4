"""Kept entries as one int32 matrix: how rows leave a device, and a process, in one piece and without an object a token.

    columns   0        1       2        3         4             5 .. 5+E    then K       then K
    value     counts   drawn   label    entropy   tail_square   tails       ids          logprobs

K slots a row, E temperatures besides 1; all but counts, drawn and ids are the bits of a float32.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.targets import Kept


def slots(targets: Targets, vocab_size: int) -> int:
    """K: room for the widest row that the targets allow."""
    return round(1 / targets.c) + 1 if targets.mode == "sampled" else min(targets.k, vocab_size)


def width(targets: Targets, vocab_size: int) -> int:
    """Columns of a packed row."""
    return 6 + len(targets.other_temperatures) + 2 * slots(targets, vocab_size)


def pack(kept: Kept, room: int) -> Tensor:
    """[R, 6 + E + 2 `room`] int32 on the device of the rows; no row has more than `room` entries."""
    free = room - kept.ids.shape[1]
    values = torch.stack([kept.label_logprob, kept.entropy, kept.tail_square], 1)
    floats = [values, kept.tail_logprob, pad(kept.logprobs, (0, free))]
    values, tails, logprobs = (part.float().contiguous().view(torch.int32) for part in floats)
    ids = pad(kept.ids, (0, free)).to(torch.int32)
    return torch.cat([torch.stack([kept.counts, kept.drawn], 1).to(torch.int32), values, tails, ids, logprobs], 1)


def unpack(rows: np.ndarray, targets: Targets) -> dict[str, np.ndarray]:
    """Arrays by name, as of `Kept`; entries flat [N], row after row. None of them holds on to `rows`."""
    tails = 1 + len(targets.other_temperatures)
    room = (rows.shape[1] - 5 - tails) // 2
    ids, logprobs = rows[:, 5 + tails : 5 + tails + room], rows[:, 5 + tails + room :]
    counts = rows[:, 0].astype(np.int64)
    if (counts < room).any():
        places = _filled(counts, rows.shape[1]) + 5 + tails
        ids, logprobs = rows.ravel()[places], rows.ravel()[places + room]
    label, entropy, square = rows[:, 2:5].view(np.float32).T.copy()
    return {
        "ids": ids.flatten(),
        "logprobs": logprobs.flatten().view(np.float32),
        "counts": counts,
        "drawn": rows[:, 1].astype(np.int64),
        "tail_logprob": rows[:, 5 : 5 + tails].view(np.float32).copy(),
        "label_logprob": label,
        "entropy": entropy,
        "tail_square": square,
    }


def _filled(counts: np.ndarray, width: int) -> np.ndarray:
    """[N] of rows of `width` columns laid end to end, the first counts[r] places of row r: work for the entries alone, not for all room."""
    ends = np.cumsum(counts)
    return np.repeat(np.arange(len(counts)) * width - (ends - counts), counts) + np.arange(counts.sum())
