"""An experiment: a set of student runs over one shard, compared in one report."""

from typing import Any

from pydantic import Field, NonNegativeInt, PositiveFloat, ValidationInfo, field_validator

from pipeline.contract.manifest.overrides import merge
from pipeline.contract.manifest.strict import Strict


class ExperimentManifest(Strict):
    """Runs that share one teacher pass. `student` holds what all runs share, `runs` what sets each apart.

    A run may carry a `label`, which is no setting: it takes the place of placement and curriculum in the run's name. Every run
    is trained once for each pair of the listed `seeds` and `learning_rates`.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    shard: str
    set: dict[str, Any] = Field({}, description="settings of the shard that this experiment needs, dotted as in --set; a --set beats them")
    student: dict[str, Any] = {}
    runs: list[dict[str, Any]] = Field(min_length=1)
    seeds: list[NonNegativeInt] = Field([], description="instead of one `seed`: paired runs, from which the report tells noise")
    learning_rates: list[PositiveFloat] = Field([], description="instead of one `learning_rate`")
    caveat: str = Field("", description="one sentence that stands under every table of the report")

    @field_validator("seeds", "learning_rates")
    @classmethod
    def _no_second_source(cls, values: list[float], info: ValidationInfo) -> list[float]:
        setting = str(info.field_name).removesuffix("s")
        if len(set(values)) < len(values):
            raise ValueError("lists one value twice; each gives runs of its own")
        if values and any(setting in layer for layer in [info.data.get("student", {}), *info.data.get("runs", [])]):
            raise ValueError(f"`{setting}` is also set under student or runs; keep one of the two")
        return values

    @property
    def labels(self) -> list[str | None]:
        """What each student is called after the experiment's name, None where placement and curriculum say it."""
        return [run.get("label") for _ in self._rounds for run in self.runs]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The settings of each student over its shard's."""
        own = [{key: value for key, value in run.items() if key != "label"} for run in self.runs]
        return [merge(self.student, shared, settings) for shared in self._rounds for settings in own]

    @property
    def _rounds(self) -> list[dict[str, Any]]:
        """Seed and learning rate of each round over `runs`; seed by seed, so that a first comparison is whole early."""
        seeds = [{"seed": seed} for seed in self.seeds] or [{}]
        rates = [{"learning_rate": rate} for rate in self.learning_rates] or [{}]
        return [{**seed, **rate} for seed in seeds for rate in rates]
