"""One process of a run with several: `python -m stage2_student.worker JOB.json` under torchrun."""

import sys
from pathlib import Path

from pipeline.contract.errors import PipelineError
from stage2_student.job import StudentJob
from stage2_student.train import train


def main() -> int:
    try:
        train(StudentJob.read(Path(sys.argv[1])))
    except PipelineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
