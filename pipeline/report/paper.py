"""The numbers of the paper (Ren et al. 2026), read from paper.toml: the report's "paper" columns hold nothing else.

They are data, not code, so that a correction of the paper is one edit and a test can swap them.
"""

import tomllib
from collections.abc import Mapping
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
    """Published values; CE and KD in nats a target token, `delta` is post - pre.

    `joint_controls`: which of grow's budgets each matches, and its CE.
    """

    table_1: Mapping[str, Mapping[str, float]]
    interaction: float
    single_block: Mapping[str, Mapping[str, float]]
    freeze: Mapping[str, Mapping[str, float]]
    freeze_penalty: float
    joint_controls: tuple[tuple[str, float], ...]
    budgets: tuple[PaperBudget, ...]
    parameters: float


@cache
def load_paper(path: Path | None = None) -> Paper:
    """The paper's tables 1, 2, 3, A2 and A3 and its parameter count; `path` swaps the packaged data file.

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
        joint_controls=tuple((row["matches"], row["ce"]) for row in data["table_3_post_joint_controls"].values()),
        budgets=tuple(_budget(name, row) for name, row in data["table_a2_budgets"].items()),
        parameters=data["run"]["parameters_total_stated"],
    )


def _budget(name: str, row: Mapping[str, Any]) -> PaperBudget:
    return PaperBudget(name, row["phases"], tuple(row["layers"]), row["total_tokens"], row["unique_tokens"])
