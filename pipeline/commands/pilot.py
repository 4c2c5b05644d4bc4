"""`pipeline pilot`: what a shard will weigh, take and cost, from its first documents."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pipeline.commands.options import (
    JsonOption,
    RootOption,
    SetOption,
    ShardOption,
    log,
    only_results_on_stdout,
    out,
    print_json,
    say_remembered,
)
from pipeline.commands.tables import print_table
from pipeline.contract.errors import ManifestError
from pipeline.contract.layout import ArtifactRoot
from pipeline.contract.manifest.overrides import read_overrides, split_by_owner
from pipeline.shard_choice import capture_settings

if TYPE_CHECKING:
    from stage1_teacher.piloting.costs import Cost
    from stage1_teacher.piloting.curve import CurveBand
    from stage1_teacher.piloting.pilot import Pilot


def pilot(
    shard: ShardOption,
    documents: Annotated[int, typer.Option(min=1, help="The shard's first documents to score.")] = 64,
    engine: Annotated[Literal["transformers", "vllm"] | None, typer.Option(help="Overrides the manifest's engine.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="Devices like this one that would share the work.")] = 1,
    price: Annotated[float | None, typer.Option(min=0, help="Of one device an hour, in any currency.")] = None,
    overrides: SetOption = None,
    root: RootOption = None,
    as_json: JsonOption = False,
) -> None:
    """Score a few documents, write nothing, and print mass kept by k, bytes a token by targets and codec, disk, hours and money."""
    given = pilot_settings(overrides, engine)
    manifest, settings = capture_settings(shard, given, ArtifactRoot.resolve(root))
    with only_results_on_stdout():
        from stage1_teacher.piloting.pilot import PilotRequest
        from stage1_teacher.piloting.pilot import pilot as run_pilot

        found = run_pilot(PilotRequest(manifest, documents, gpus, price, on_scored=say_progress))
    say_remembered(settings, given)
    if as_json:
        print_json({**found.as_json(), "gpus": gpus, "price": price, "notes": notes(found)})
    else:
        print_pilot(found, gpus)


def pilot_settings(overrides: list[str] | None, engine: str | None) -> dict[str, Any]:
    """The shard's keys of a command line.

    Raises:
        ManifestError: a key that is unknown, or a student's.
    """
    shard, student = split_by_owner(read_overrides(overrides or []))
    for key, value in student.items():
        raise ManifestError(f"--set {key}={value}: is a student's setting, and a pilot trains none; leave it out")
    return shard | ({"engine": engine} if engine else {})


def say_progress(done: int, wanted: int, seconds: float) -> None:
    """A line on stderr."""
    log.print(f"{done}/{wanted} documents scored, about {(wanted - done) * seconds / done:,.0f} s left")


def notes(found: "Pilot") -> list[str]:
    """What to know before one believes the figures."""
    said = ["the first documents are taken for a random sample of the shard; ± is a standard error"]
    if found.device == "cpu":
        said.append("the rate, and with it the hours, is this CPU's; run the pilot where the capture will run")
    clustered = next((cost for cost in found.costs if cost.codec == "clusters"), None)
    if clustered:
        said.append(
            f"clusters are fitted to {clustered.fitted_rows:,} rows of these documents and measured on the other {clustered.rows:,}; "
            f"a capture fits them to {found.shard.cache.calibration_rows:,}"
        )
    elif found.codec == "clusters":
        said.append("a capture would take codec clusters, which weighs less: here are too few rows to fit them to; give more --documents")
    return said


def print_pilot(found: "Pilot", gpus: int) -> None:
    """The whole as text."""
    skipped = "".join(f", {count:,} {reason} skipped" for reason, count in found.skipped.items())
    out.print(f"{found.shard.name}: the first {found.documents:,} documents{skipped}; {found.tokens:,} target tokens")
    out.print(f"documents {found.documents_hash}; {found.device}, {found.tokens_per_second:,.0f} target tokens a second")
    out.print("\nMass of the k largest: mean, what nine rows in ten reach, median; by the teacher's entropy in nats")
    bands = found.curve.bands
    header = ["k", *(f"{name} ({band.rows:,} rows)" for name, band in bands.items())]
    print_table(header, [[f"{k}", *(_three(band, place) for band in bands.values())] for place, k in enumerate(found.curve.k)])
    out.print(f"\nBytes a token and what is lost; * marks the manifest's targets, which a capture would code as {found.codec}")
    header = ["targets", "codec", "entries", "bytes", "mass kept", "mean KL", "gradient error", "whole shard"]
    print_table(header, [[*_cost_row(cost), size(found.disk(cost))] for cost in found.costs])
    out.print("KL in nats, the kept ids and the tail as one outcome; gradient error is the sample's noise over the distribution")
    out.print(f"\n{_totals(found, gpus)}")
    for note in notes(found):
        out.print(f"note: {note}")


def _three(band: "CurveBand", place: int) -> str:
    return f"{band.mean[place]:.3f} {band.p10[place]:.3f} {band.p50[place]:.3f}"


def _cost_row(cost: "Cost") -> list[str]:
    kl, gradient = cost.fidelity.get("kl_mean"), cost.fidelity.get("gradient_error")
    lost = ["" if kl is None else f"{kl:.1e}", "" if gradient is None else f"{gradient:.3f}"]
    measured = [f"{cost.entries_per_token:.1f}", f"{cost.bytes_per_token:.1f}", f"{cost.mass_kept:.4f}"]
    return [f"{'*' if cost.asked else ' '} {cost.label}", cost.codec, *measured, *lost]


def _totals(found: "Pilot", gpus: int) -> str:
    whole = found.totals
    shared = "" if gpus == 1 else f"; {whole.hours:,.3g} hours on {gpus} of them"
    money = "" if whole.money is None else f"; money {whole.money:,.2f}"
    return (
        f"Whole shard: {whole.documents:,} documents, {_with_error(whole.tokens, whole.tokens_se, ',.0f')} target tokens "
        f"({_with_error(whole.tokens_per_document, whole.tokens_per_document_se, ',.1f')} a document)\n"
        f"{_with_error(whole.gpu_hours, whole.gpu_hours_se, ',.3g')} hours on one {found.device}{shared}{money}\n"
        f"beside the shards {size(found.teacher_bytes)} of embedding, head and norm"
    )


def _with_error(value: float, error: float | None, form: str) -> str:
    return f"{value:{form}} ± {'unknown' if error is None else f'{error:{form}}'}"


def size(count: float) -> str:
    """Bytes as people say them: 1.23 GB."""
    units = (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
    unit, scale = next((each for each in units if count >= each[1]), units[-1])
    return f"{count / scale:.3g} {unit}"
