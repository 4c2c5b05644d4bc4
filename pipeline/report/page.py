"""One self-contained HTML page: styles and figures inside, no script, nothing fetched."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.report.grid import Table
from pipeline.report.notes import distinct
from pipeline.report.records import Run

if TYPE_CHECKING:
    from pipeline.report.drawing import Drawing


@dataclass(frozen=True)
class Contents:
    """What a report says, before any format: `notes` go before the numbers, `problems` are (run, text)."""

    name: str
    about: str
    notes: Sequence[str]
    problems: Sequence[tuple[str, str]]
    tables: Sequence[Table]
    drawings: "Sequence[Drawing]"
    runs: Sequence[Run]


def facts(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What all runs share: data, teacher, sizes. Several values stand side by side."""
    finished = sum(not run.problem for run in runs)
    rows = [("Runs", f"{len(runs)}, of which {finished} complete")]
    for term, key in (("Shard", "shard"), ("Teacher", "teacher"), ("Cache fingerprint", "cache_fingerprint")):
        rows.append((term, _joined([run.config.get(key) for run in runs])))
    rows.append(("Seeds", _joined([run.seed for run in runs])))
    tokens = distinct([run.number("val_tokens") for run in runs])
    rows.append(("Validation", f"{_joined([f'{count:,}' for count in tokens])} target tokens" if tokens else "not recorded"))
    return rows


def _joined(values: Sequence[Any]) -> str:
    return ", ".join(map(str, distinct(values))) or "not recorded"


def render_page(contents: Contents) -> str:
    """The page as HTML text, from the template in this package."""
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    source = files(__package__).joinpath("page.html.j2").read_text(encoding="utf-8")
    # Figures follow table 1 and 2: the answer, then how it came about, then the details.
    return environment.from_string(source).render(
        contents=contents,
        facts=facts(contents.runs),
        tables=contents.tables[:2],
        details=contents.tables[2:],
        provenance=[_provenance(run) for run in contents.runs],
    )


def _provenance(run: Run) -> dict[str, str]:
    starts = run.provenance if isinstance(run.provenance, list) else [run.provenance] if run.provenance else []
    seconds, resumed, shared = run.number("seconds"), run.number("resumed_from"), run.result.get("shared_phases")
    told = [f"{run.norm}-norm, {run.curriculum}, seed {run.seed}", f"started {len(starts)} times" if len(starts) > 1 else ""]
    told += [f"first phases from {', '.join(map(str, distinct(shared)))}" if isinstance(shared, list) and shared else ""]
    told += [f"resumed from step {resumed:,}" if resumed else ""]
    told += [f"{seconds:,.0f} s" if seconds is not None else "", run.problem_kind]
    return {
        "name": run.name,
        "summary": " · ".join(filter(None, told)),
        "config": json.dumps(dict(run.config), indent=1, ensure_ascii=False),
        "starts": json.dumps(starts, indent=1, ensure_ascii=False),
    }
