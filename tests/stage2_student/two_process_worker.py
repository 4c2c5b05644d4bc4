"""What two processes do for several test files, started once: `python -m torch.distributed.run ... two_process_worker.py ROOT OUT`."""

import sys
from pathlib import Path

import torch
from gradient_worker import all_cases


def main(root: Path, out: Path) -> None:
    found = {"gradients": all_cases(root)}
    if torch.distributed.get_rank() == 0:
        torch.save(found, out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
