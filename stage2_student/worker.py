"""One process of a run that `launch` started: `python -m stage2_student.worker FOLDER`, where FOLDER holds the job."""

import sys
from pathlib import Path

from pipeline.contract.errors import PipelineError
from pipeline.contract.process import end_with_parent
from stage2_student.job import StudentJob
from stage2_student.launch import in_process, rank


def main(folder: Path) -> int:
    """Run the job; an error of the user's is left in the folder for the process that started us."""
    end_with_parent()
    try:
        in_process(StudentJob.read(folder / "job.json"))
    except PipelineError as error:
        (folder / f"error-{rank()}.txt").write_text(str(error), encoding="utf-8")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
