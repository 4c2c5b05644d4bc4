"""An experiment: a set of student runs over one shard, compared in one report."""

from typing import Any

from pydantic import Field

from pipeline.contract.manifest.overrides import merge
from pipeline.contract.manifest.strict import Strict


class ExperimentManifest(Strict):
    """Runs that share one teacher pass. `student` holds what all runs share, `runs` what sets each apart.

    A run may carry a `label`, which is no setting: it takes the place of placement and curriculum in the run's name.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    shard: str
    set: dict[str, Any] = Field({}, description="settings of the shard that this experiment needs, dotted as in --set; a --set beats them")
    student: dict[str, Any] = {}
    runs: list[dict[str, Any]] = Field(min_length=1)
    caveat: str = Field("", description="one sentence that stands under every table of the report")

    @property
    def labels(self) -> list[str | None]:
        """What each run is called after the experiment's name, None where placement and curriculum say it."""
        return [run.get("label") for run in self.runs]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The settings of each run over its shard's."""
        return [merge(self.student, {key: value for key, value in run.items() if key != "label"}) for run in self.runs]
