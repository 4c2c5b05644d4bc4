"""The numbers of the paper (Ren et al. 2026), read from paper.toml: the report's "paper" columns hold nothing else.

They are data, not code, so that a correction of the paper is one edit and a test can swap them.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pipeline.contract.errors import PipelineError


@dataclass(frozen=True)
class PaperBudget:
    """One row of table A2; tokens are target tokens."""

    name: str
    phases: int
    layers: tuple[int, ...]
    total_tokens: float
    unique_tokens: float


@dataclass(frozen=True)
class Paper:
    """Published values; CE and KD in nats a target token, `delta` is post - pre; pairs are (pre, post).

    Attributes:
        joint_controls: rows of table 3, in the order of their length: `matches`, `ce`.
        removal: table 4 by "pre_grow" and so on: `delta_ce` and `angular` of each block.
        transition: table A4 by measure: `at_50k`, `at_100k`.
        boundary_std: std of block 0's RMS in pre-norm at the `first` and the `last` phase's end (figure 4).
        token_types: RMS by token type (figure 5a).
        settings: table A1, by the name of a run's own setting.
    """

    table_1: Mapping[str, Mapping[str, float]]
    interaction: float
    single_block: Mapping[str, Mapping[str, float]]
    freeze: Mapping[str, Mapping[str, float]]
    freeze_penalty: float
    budgets: tuple[PaperBudget, ...]
    parameters: float
    joint_controls: tuple[Mapping[str, Any], ...]
    removal: Mapping[str, Mapping[str, Sequence[float]]]
    transition: Mapping[str, Mapping[str, Sequence[float]]]
    boundary_std: Mapping[str, float]
    token_types: Mapping[str, Any]
    settings: Mapping[str, Any]

    def penalty(self, norm: str) -> float:
        """CE(freeze) - CE(grow) of one placement."""
        return self.freeze["freeze"][norm] - self.freeze["grow"][norm]


@cache
def load_paper(path: Path | None = None) -> Paper:
    """The paper's numbers; `path` swaps the packaged data file.

    Raises:
        PipelineError: when the file is not TOML or lacks a table.
    """
    text = path.read_text(encoding="utf-8") if path else files(__package__).joinpath("paper.toml").read_text(encoding="utf-8")
    try:
        return _paper(tomllib.loads(text))
    except (KeyError, tomllib.TOMLDecodeError) as error:
        raise PipelineError(f"{path or 'paper.toml'}: {error} is missing or not TOML; restore the file from the package") from None


def _paper(data: Mapping[str, Any]) -> Paper:
    table_1, freeze = data["table_1_validation_ce"], data["table_a3_freeze_ce"]
    return Paper(
        table_1={curriculum: table_1[curriculum] for curriculum in ("joint", "grow")},
        interaction=table_1["interaction"],
        single_block=data["table_2_single_block"],
        freeze={curriculum: freeze[curriculum] for curriculum in ("grow", "freeze")},
        freeze_penalty=freeze["penalty"],
        budgets=tuple(_budget(name, row) for name, row in data["table_a2_budgets"].items()),
        parameters=data["run"]["parameters_total_stated"],
        joint_controls=tuple(data["table_3_post_joint_controls"].values()),
        removal=data["table_4_block_removal"],
        transition=data["table_a4_transition"],
        boundary_std=data["figure_4_boundary_rms"]["pre_block0_std"],
        token_types=data["figure_5a_token_type_rms"],
        settings=_settings(data["run"], data["optimizer"]),
    )


def _settings(run: Mapping[str, Any], optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Under the names of a run's settings."""
    return {
        "model.blocks": run["blocks"],
        "model.layers_per_block": run["layers_per_block"],
        "steps": run["steps_per_phase"],
        "global_batch_size": run["global_batch"],
        "eval_interval": run["eval_interval"],
        "seed": run["seed"],
        "learning_rate": optimizer["lr_peak"],
        "learning_rate_min": optimizer["lr_min"],
        "warmup_ratio": optimizer["warmup_steps"] / run["steps_per_phase"],
        "adam_beta1": optimizer["betas"][0],
        "adam_beta2": optimizer["betas"][1],
        "adam_epsilon": optimizer["eps"],
        "weight_decay": optimizer["weight_decay"],
        "gradient_clip": optimizer["gradient_clip"],
        "alpha": optimizer["alpha"],
        "gamma": optimizer["gamma"],
        "temperature": optimizer["temperature"],
    }


def _budget(name: str, row: Mapping[str, Any]) -> PaperBudget:
    return PaperBudget(name, row["phases"], tuple(row["layers"]), row["total_tokens"], row["unique_tokens"])
