"""What two processes do for several test files, started once: `python -m torch.distributed.run ... two_process_worker.py ROOT OUT`."""

import sys
from pathlib import Path

import gradient_worker
import reshaped_states
import support_runs
import torch


def main(root: Path, out: Path) -> None:
    found = {
        "root": root,
        "gradients": gradient_worker.all_cases(root),
        "lines": support_runs.all_lines(root),
        "states": reshaped_states.save_states(root),
    }
    if torch.distributed.get_rank() == 0:
        torch.save(found, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
