"""Rows that were packed into integers are the rows that were kept."""

import numpy as np
import pytest
import torch

from pipeline.contract.manifest.shard import Targets
from stage1_teacher.packed_rows import pack, slots, unpack, width
from stage1_teacher.scored import columns_of
from stage1_teacher.targets import keep

VOCAB = 300
TARGETS = [
    Targets(k=8),
    Targets(k=255),
    Targets(k=8, temperatures=[1.0, 0.5, 2.0]),
    Targets(mode="threshold", c=0.02, k=40, temperatures=[1, 3]),
    Targets(mode="threshold", c=0.9),
    Targets(mode="sampled", c=1 / 16),
    Targets(mode="sampled", c=1 / 254),
]


@pytest.mark.parametrize("targets", TARGETS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 40])
def test_what_is_unpacked_is_what_was_kept(targets, rows):
    generator = torch.Generator().manual_seed(rows)
    logits = 3 * torch.randn(rows, VOCAB, generator=generator)
    labels, draws = torch.randint(VOCAB, (rows,), generator=generator), torch.randint(1 << 40, (rows,), generator=generator)
    kept = keep(logits, labels, targets, draws)
    packed = pack(kept, slots(targets, VOCAB))
    assert packed.shape == (rows, width(targets, VOCAB)) and packed.dtype == torch.int32
    wanted, found = columns_of(kept), unpack(packed.numpy(), targets)
    assert wanted.keys() == found.keys()
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        np.testing.assert_array_equal(found[name], values)
        assert rows == 0 or not np.shares_memory(found[name], packed.numpy())


def test_room_is_for_the_widest_row_and_no_more_than_the_vocabulary():
    assert [slots(each, VOCAB) for each in TARGETS] == [8, 255, 8, 40, 64, 17, 255]
    assert slots(Targets(k=255), 100) == 100
