"""The picture as an HTML page. Every name and reason in it is escaped; styles, script and charts are files of the same server."""

import math
import time
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from pipeline.watch.capture_state import CaptureView
from pipeline.watch.charts import Charts
from pipeline.watch.picture import Picture, Watch
from pipeline.watch.run_metrics import RunMetrics
from pipeline.watch.run_state import RunView
from pipeline.watch.words import HEADER, LEGEND, capture_line, event, guards, label, notes, printable, rows

if TYPE_CHECKING:
    from jinja2 import Template

RELOAD_SECONDS = 5
"""Where scripts are off, the least time between two reloads of the whole page."""


def render_page(picture: Picture, watch: Watch, charts: Charts, every: float) -> str:
    """The page as HTML text."""
    return _template().render(
        picture=picture,
        title=_title(picture),
        clock=time.strftime("%H:%M:%S", time.localtime(picture.at)),
        every=f"{every:g}",
        milliseconds=round(1000 * every),
        reload=max(RELOAD_SECONDS, math.ceil(every)),
        capture=picture.capture and capture_line(picture.capture),
        capture_share=_share(picture.capture),
        header=HEADER,
        rows=rows(picture),
        notes=notes(picture),
        legend=LEGEND,
        charts=[_chart(picture, index, run, watch.runs[index].metrics, charts) for index, run in enumerate(picture.runs)],
    )


@cache
def _template() -> "Template":
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    return environment.from_string(resource("page.html.j2").decode("utf-8"))


def resource(name: str) -> bytes:
    """A file of this package."""
    return files(__package__).joinpath(name).read_bytes()


def _title(picture: Picture) -> str:
    done = sum(run.state == "done" for run in picture.runs)
    return f"{done}/{len(picture.runs)} done: {picture.name}"


def _share(capture: CaptureView | None) -> float | None:
    if capture is None or not capture.shards or capture.state == "done":
        return None
    return min(1.0, capture.shards_done / capture.shards)


def _chart(picture: Picture, index: int, run: RunView, metrics: RunMetrics, charts: Charts) -> dict[str, Any]:
    told = [
        run.state,
        f"started {run.started[:16].replace('T', ' ')} UTC" if run.started else "",
        f"{run.starts} times" if run.starts > 1 else "",
    ]
    told += [f"active layers {run.active_layers}" if run.active_layers and run.state == "running" else ""]
    chart = charts.newest(run, metrics)
    return {
        "index": index,
        "name": label(picture, run),
        "told": ", ".join(filter(None, told)),
        "version": chart.version,
        "alt": chart.alt,
        "guards": guards(run),
        "events": [printable(event(record)) for record in run.events],
    }
