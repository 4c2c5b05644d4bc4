"""Another number of processes goes on from a checkpoint: every weight and every moment is there, bit for bit."""

import pytest
import torch
from gradient_worker import BATCHES, one_step
from reshaped_states import ENGINES, opened, whole_state

from pipeline.contract.errors import RunError
from stage2_student.checkpoint import Checkpoints


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: "-".join(map(str, engine)))
def test_one_process_holds_what_two_saved(two_processes, engine):
    found = two_processes()
    run, made, checkpoints = opened(found["root"], engine)
    folder, position = checkpoints.latest()
    assert position.world_size == 2
    checkpoints.restore(folder, position, made)
    mine, theirs = whole_state(made), found["states"][engine]
    assert mine.keys() == theirs.keys() and len(mine) == 36 * 2 + 11 * 2
    assert [name for name in mine if not torch.equal(mine[name], theirs[name])] == []
    assert all(theirs[name].any() for name in theirs if name.startswith("exp_avg"))
    one_step(run, made, BATCHES["ragged"], 100, rate=1e-3)  # and it goes on
    made.close()
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["latest", "step-00000001"]


def test_what_cannot_be_converted_is_one_line_with_the_way_out(two_processes, tmp_path):
    found = two_processes()
    _, made, checkpoints = opened(found["root"], ENGINES[1])
    folder, position = checkpoints.latest()
    damaged = Checkpoints(tmp_path / "checkpoints", 1, checkpoints.processes)
    copy = damaged.folder / folder.name
    (copy / "engine").mkdir(parents=True)
    with pytest.raises(RunError, match=r"cannot be read by another number of processes .* resume with --devices 2") as error:
        damaged.restore(copy, position, made)
    assert "\n" not in str(error.value) and not list(damaged.folder.glob(".tmp-*"))
    made.close()
