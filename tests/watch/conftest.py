"""An experiment that this process is in the middle of, with a run in each of four states."""

import pytest
from watched_runs import STEPS, advance, begin, end, guard_record, val_record

from pipeline.contract.run_record import RunFolder
from pipeline.watch.picture import Watch
from pipeline.watch.run_state import RunWatch


@pytest.fixture
def watch(tmp_path):
    """Four runs: one running with a spike behind it, one done, one failed with a hostile reason, one not begun."""
    runs = tmp_path / "runs"
    going = begin(runs / "going", "exp/going")
    going.append_metrics(val_record(0, 0, 9.0))
    advance(going, 1, STEPS + 5)
    going.append_metrics(guard_record(STEPS + 5, "loss_spike", **{"train/loss": 99.0, "mean": 3.0, "deviation": 0.1}))
    done = begin(runs / "done", "exp/done", norm="pre", curriculum="joint", steps=STEPS)
    advance(done, 1, STEPS)
    done.write("result", {})
    failed = begin(runs / "failed", "exp/failed")
    end(failed, "exp/failed: <script>alert(1)</script> \x1b[2J went wrong")
    return Watch("exp", [RunWatch(f"exp/{name}", RunFolder(runs / name)) for name in ("going", "done", "failed", "absent")])
