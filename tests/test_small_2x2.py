"""small-2x2 in miniature: its own manifests with smaller numbers, a teacher of its own, interrupted everywhere and gone on with."""

import json
import re
import shutil
from pathlib import Path
from statistics import fmean, stdev

import pytest
import yaml
from benchmarks.study_record import study_record
from tiny_teacher import WORDS, write_parquet

from pipeline.commands.run import workflow_of
from pipeline.contract.atomic_io import publish
from pipeline.contract.errors import RunError
from pipeline.contract.manifest.find import load_experiment, load_shard
from pipeline.contract.manifest.overrides import merge

ROOT = Path(__file__).parents[1]
SHARD = {
    "teacher": {
        "training": {"vocab_size": 300, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "steps": 6}
        | {"global_batch_size": 4, "checkpoint_interval": 2}
    },
    "documents": {"source": "parquet", "packages": {}, "limit": 20, "validation": {"documents": 3, "every": 4}, "max_length": 48},
    "targets": {"k": 8},
    "cache": {"documents_per_shard": 8},
    "student": {"checkpoint_interval": 1, "eval_interval": 2, "probe_documents": 1},
}
STUDENT = {"steps": 2, "global_batch_size": 4, "train_documents": 8}
INTERRUPTED_AT = (
    "teachers/small-docs/tokenizer",
    "teachers/small-docs/checkpoint.pt",
    "teachers/small-docs/model",
    "caches/small-docs/shards/train-00001",
    "runs/small-2x2/post-grow.*/checkpoints/step-00000003",
    "runs/small-2x2/post-grow.*/diagnostics/",
    "reports/small-2x2/",
)
"""What is about to be published when Ctrl-C comes, in order."""


@pytest.fixture
def experiment(tmp_path):
    """Two runs of the experiment, at one rate and seed, as manifests in the working folder."""
    files = write_parquet(tmp_path / "documents.parquet", [words(i) for i in range(30)])
    shipped = {
        name: yaml.safe_load((ROOT / f"manifests/{name}.yaml").read_text()) for name in ("shards/small-docs", "experiments/small-2x2")
    }
    shard = merge(shipped["shards/small-docs"], SHARD, {"documents": {"files": [str(files)]}})
    runs = [run for run in shipped["experiments/small-2x2"]["runs"] if run in ({"norm": "pre", "curriculum": "joint"}, GROWN)]
    assert len(runs) == 2
    small = shipped["experiments/small-2x2"] | {"runs": runs, "seeds": [42], "learning_rates": [3e-3], "student": STUDENT}
    for name, data in (("shards/small-docs", shard), ("experiments/small-2x2", small)):
        path = tmp_path / f"manifests/{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(data), encoding="utf-8")


GROWN = {"norm": "post", "curriculum": "grow"}


def words(number: int) -> str:
    return " ".join(WORDS[(number * 7 + place * place) % len(WORDS)] for place in range(6 + number % 25))


class CtrlC:
    """Comes once at each place, just before what is named there is published."""

    def __init__(self) -> None:
        self.left = list(INTERRUPTED_AT)

    def publish(self, temporary: Path, path: Path) -> None:
        if self.left and re.search(self.left[0], str(path)):
            del self.left[0]
            raise KeyboardInterrupt
        publish(temporary, path)


def test_interrupted_and_resumed_it_ends_in_the_same_report(pipeline, experiment, tmp_path, monkeypatch):
    monkeypatch.setattr("pipeline.report.figures.drawings", lambda *given: [])  # drawn in the report's own tests
    whole = run(pipeline, "uninterrupted")
    assert [stage["state"] for stage in whole["stages"][:2]] == ["missing", "missing"] and whole["teacher_passes"] == 1
    control_c = CtrlC()
    for module in ("pipeline.contract.atomic_io", "pipeline.contract.store", "stage2_student.checkpoint"):
        monkeypatch.setattr(f"{module}.publish", control_c.publish)
    for left in range(len(INTERRUPTED_AT), 0, -1):
        code, _, err = pipeline("run", "small-2x2", "--root", "resumed")
        assert code == 2 and err.splitlines()[-1].startswith("error: interrupted") and len(control_c.left) == left - 1, err
        if INTERRUPTED_AT[-left].startswith("runs/"):  # a student is looked into before the next is trained
            assert list(tmp_path.glob("resumed/runs/small-2x2/pre-joint*/diagnostics/*.json"))
    with pytest.raises(RunError, match=r"report small-2x2: missing .*finish with 'pipeline run small-2x2 --root resumed'"):
        study_record(workflow_of("small-2x2", None, "resumed"))
    resumed = run(pipeline, "resumed")
    assert resumed["table_1"] == whole["table_1"]
    assert [student["val_ce"] for student in resumed["students"]] == [student["val_ce"] for student in whole["students"]]
    for folder in ("teachers/small-docs/model", "reports/small-2x2"):
        assert different(tmp_path / "resumed" / folder, tmp_path / "uninterrupted" / folder) == []

    record, again = (study_record(workflow_of("small-2x2", None, root)) for root in ("resumed", "uninterrupted"))
    assert record["runs"] == again["runs"] and record["teacher"] == again["teacher"] and record["cache"] == again["cache"]
    assert [run["phases"][-1]["val_ce"] for run in record["runs"]] == [student["val_ce"] for student in whole["students"]]
    assert record["starts_of_runs"]["starts"] > again["starts_of_runs"]["starts"] == 3  # a teacher and two students
    a_whole_cache_needs_no_teacher(pipeline, tmp_path)


def a_whole_cache_needs_no_teacher(pipeline, tmp_path) -> None:
    """It is not trained again; where one is that the manifest says no more, nothing is touched."""
    code, _, err = pipeline("run", "small-2x2", "--root", "uninterrupted", "--set", "teacher.training.steps=9")
    assert code == 2 and "teacher.training.steps was 6, is 9" in err.splitlines()[-1]
    shutil.rmtree(tmp_path / "resumed/teachers")
    again = run(pipeline, "resumed")
    assert {stage["state"] for stage in again["stages"]} == {"current"} and not (tmp_path / "resumed/teachers").exists()
    assert again["stages"][0] == {"name": "teacher small-docs", "state": "current", "reason": "not here; its cache is whole"}


def run(pipeline, root: str) -> dict:
    code, out, err = pipeline("run", "small-2x2", "--root", root, "--json")
    assert code == 0, err
    return json.loads(out)


def different(left: Path, right: Path) -> list[str]:
    """Files that are not in both folders with the same content; what a report says of starts and seconds may differ."""
    ours, theirs = ({path.name: without_starts(path) for path in folder.rglob("*") if path.is_file()} for folder in (left, right))
    assert len(ours) > 1
    return [name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)]


def without_starts(path: Path) -> bytes:
    if path.name == "inputs.txt":  # a hash of the results, seconds and all
        return b""
    provenance = rb'<section id="provenance">.*?</section>'
    return re.sub(provenance, b"", path.read_bytes(), flags=re.DOTALL) if path.suffix == ".html" else path.read_bytes()


def test_the_shipped_study_is_what_was_asked_for():
    shard, experiment = load_shard("small-docs"), load_experiment("small-2x2")
    assert shard.teacher.trained_on == experiment.shard == "small-docs" and shard.teacher.training
    assert len(experiment.seeds) >= 3 and len(experiment.learning_rates) >= 2
    blocks = shard.student["model"]["blocks"]
    longest = experiment.student["steps"] * experiment.student["global_batch_size"] * blocks
    assert longest <= shard.documents.limit  # joint-longer never wraps
    (scaled,) = {run["model"]["initializer_range"] for run in experiment.runs if "model" in run}
    assert scaled == pytest.approx(0.02 * (4096 / shard.teacher.training.hidden_size) ** 0.5, abs=1e-4)


def test_the_reading_has_the_records_numbers():
    """What is written about the study's record follows from the record."""
    records = ROOT / "manifests/records"
    reading = " ".join((records / "small-2x2-reading.md").read_text(encoding="utf-8").split())
    runs = json.loads((records / "small-2x2.json").read_text(encoding="utf-8"))["runs"]
    ends: dict[tuple[str, float], list[float]] = {}
    for run in runs:
        cell = re.fullmatch(r"small-2x2/(.+)-lr[^-]+-seed\d+", run["run"])[1]
        ends.setdefault((cell, run["learning_rate"]), []).append(run["phases"][-1]["val_ce"])
    mean = {key: fmean(values) for key, values in ends.items()}
    best = {cell: min(mean[cell, rate] for rate in (3e-3, 6e-3)) for cell, _ in mean}

    def interaction(of) -> float:
        return of("post-grow") - of("pre-grow") - of("post-joint") + of("pre-joint")

    at = {rate: interaction(lambda cell, rate=rate: mean[cell, rate]) for rate in (3e-3, 6e-3)}
    grown = [best[f"{norm}-joint"] - best[f"{norm}-grow"] for norm in ("pre", "post")]
    longer = [best[f"{norm}-grow"] - best[f"{norm}-joint-longer"] for norm in ("pre", "post")]
    single = [best[f"{norm}-joint"] - best[f"{norm}-single-block-restart"] for norm in ("pre", "post")]
    frozen = [best[f"{norm}-freeze"] - best[f"{norm}-grow"] for norm in ("pre", "post")]
    cells = [f"{norm}-{curriculum}" for norm in ("pre", "post") for curriculum in ("joint", "grow")]
    lost = {cell: (mean[cell, 6e-3] - mean[cell, 3e-3]) * (1 if cell.startswith("pre") else -1) for cell in cells}
    scaled = [best[f"{cell}-init-scaled"] - best[cell] for cell in cells]

    def interval(rate: float) -> tuple[float, float]:
        by_seed = [interaction(lambda cell, seed=seed: ends[cell, rate][seed]) for seed in range(3)]
        half = 4.302653 * stdev(by_seed) / 3**0.5  # Student's t, two degrees of freedom
        return fmean(by_seed) - half, fmean(by_seed) + half

    tables = (records / "small-2x2.md").read_text(encoding="utf-8")
    last = {cell: float(re.search(rf"^\| {cell} +\| CE rise +(?:\|[^|]*){{6}}\| +([-\d.]+)", tables, re.M)[1]) for cell in cells}
    for text in (
        f"At 3e-3 the interaction is {at[3e-3]:.3f} ({interval(3e-3)[0]:.3f} to {interval(3e-3)[1]:.3f})",
        f"at 6e-3 it is {at[6e-3]:+.3f} ({interval(6e-3)[0]:+.3f} to {interval(6e-3)[1]:+.3f})",
        f"better of the two rates it is {interaction(best.__getitem__):.3f}",
        f"pre-joint loses {lost['pre-joint']:.3f} at 6e-3 and pre-grow {lost['pre-grow']:.3f}",
        f"post-joint loses {lost['post-joint']:.3f} at 3e-3 and post-grow {lost['post-grow']:.3f}",
        f"grow ends {grown[0]:.3f} (pre) and {grown[1]:.3f} (post) below",
        f"below grow by {longer[0]:.3f} and {longer[1]:.3f}",
        f"ends {single[0]:.3f} and {single[1]:.3f} below",
        f"costs {frozen[0]:.3f} (pre) and {frozen[1]:.3f} (post)",
        f"CE rises by {last['pre-grow']:.3f} (pre) and {last['post-grow']:.3f} (post); jointly trained, by {last['pre-joint']:.2f}",
        f"worse by {min(scaled):.2f} to {max(scaled):.2f}",
        f"{fmean(run['clipped'] for run in runs):.0%} are clipped",
    ):
        assert text in reading, text
