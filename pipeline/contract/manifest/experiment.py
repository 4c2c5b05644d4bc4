"""An experiment: a set of student runs over one shard, compared in one report."""

from typing import Any

from pydantic import Field

from pipeline.contract.manifest.strict import Strict


class ExperimentManifest(Strict):
    """Runs that share one teacher pass. `student` holds what all runs share, `runs` what sets each apart."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    shard: str
    student: dict[str, Any] = {}
    runs: list[dict[str, Any]] = Field(min_length=1)
    caveat: str = Field("", description="one sentence that stands under every table of the report")
