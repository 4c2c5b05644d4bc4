"""Reuse: one teacher pass for all students, none the second time, and only the students whose settings changed."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from tiny_teacher import text, write_parquet, write_teacher

CHECKOUT = Path(__file__).parents[1]
SHARD = {
    "name": "tiny",
    "documents": {"source": "parquet", "limit": 12, "validation": {"documents": 3, "every": 4}, "max_length": 32},
    "targets": {"k": 8},
    "cache": {"documents_per_shard": 4},
    "student": {
        "model": {"blocks": 2, "layers_per_block": 1, "initializer_range": 0.2},
        "steps": 2,
        "global_batch_size": 4,
        "learning_rate": 1e-2,
        "eval_interval": 2,
        "gradient_checkpointing": False,
    },
}
EXPERIMENT = {
    "name": "tiny-2x2",
    "shard": "tiny",
    "caveat": "A caveat that stands under the table.",
    "runs": [{"norm": norm, "curriculum": curriculum} for curriculum in ("joint", "grow") for norm in ("pre", "post")],
}


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """Manifests in ./manifests, a teacher and documents beside them."""
    monkeypatch.setattr("pipeline.report.figures.drawings", lambda *given: [])  # drawn in the report's own tests
    teacher = write_teacher(tmp_path / "teacher")
    documents = write_parquet(tmp_path / "documents.parquet", [text(4 + i % 9, i) for i in range(30)])
    shard = {**SHARD, "teacher": {"model": str(teacher)}, "documents": {**SHARD["documents"], "files": str(documents)}}
    for kind, data in (("shards", shard), ("experiments", EXPERIMENT)):
        folder = tmp_path / "manifests" / kind
        folder.mkdir(parents=True)
        (folder / f"{data['name']}.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return "tiny-2x2"


def run(pipeline, *arguments):
    code, out, err = pipeline(*arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_one_teacher_pass_and_only_what_is_stale(pipeline, experiment, tmp_path):
    planned = run(pipeline, "plan", experiment)
    assert {stage["state"] for stage in planned["stages"][:-1]} == {"missing"} and planned["teacher_passes"] == 1

    first = run(pipeline, "run", experiment)
    assert first["teacher_passes"] == 1 and [s["steps_executed"] for s in first["students"]] == [2, 2, 4, 4]
    table = first["table_1"]
    ce = {(s["norm"], s["curriculum"]): s["val_ce"] for s in first["students"]}
    assert table["joint"]["pre"] == ce["pre", "joint"] and table["grow"]["post"] == ce["post", "grow"]
    expected = (ce["post", "grow"] - ce["pre", "grow"]) - (ce["post", "joint"] - ce["pre", "joint"])
    assert table["interaction"] == pytest.approx(expected, abs=1e-12)
    page = (tmp_path / "artifacts/reports/tiny-2x2/index.html").read_text(encoding="utf-8")
    assert "A caveat that stands under the table." in page and f"{ce['post', 'grow']:.4f}" in page

    planned = run(pipeline, "plan", experiment)
    assert {stage["state"] for stage in planned["stages"]} == {"current"} and planned["teacher_passes"] == 0
    assert planned["tokens"] == 0
    planned = run(pipeline, "plan", experiment, "--set", "learning_rate=5e-3")
    assert planned["tokens"] == sum(run(pipeline, "train", *flags(s), "--dry-run")["tokens_total"] for s in first["students"])

    runs = tmp_path / "artifacts/runs"
    times = {path: path.stat().st_mtime_ns for name in ("result.json", "diagnostics/*.json") for path in runs.rglob(name)}
    assert len(times) == 4 * (1 + 9)  # each student's diagnostics are made once, too
    assert (tmp_path / "artifacts/reports/tiny-2x2/table-4.csv").read_text().count("not diagnosed") == 0
    again = run(pipeline, "run", experiment)
    assert again["teacher_passes"] == 0 and times == {path: path.stat().st_mtime_ns for path in times}

    changed = run(pipeline, "run", experiment, "--set", "learning_rate=5e-3")
    assert changed["teacher_passes"] == 0
    assert all("learning_rate was 0.01, is 0.005" in stage["reason"] for stage in changed["stages"] if stage["name"].startswith("student"))
    assert [s["val_ce"] for s in changed["students"]] != [s["val_ce"] for s in first["students"]]
    kept = [path for path in (tmp_path / "artifacts/runs/tiny-2x2").iterdir() if "." in path.name]
    assert len(kept) == 4  # the earlier runs are set aside, not lost


def flags(student):
    return ["--shard", "tiny", "--norm", student["norm"], "--curriculum", student["curriculum"]]


def test_a_new_run_trains_alone(pipeline, experiment, tmp_path):
    path = tmp_path / "manifests/experiments/tiny-2x2.yaml"
    small = {**EXPERIMENT, "runs": EXPERIMENT["runs"][:1]}
    path.write_text(yaml.safe_dump(small), encoding="utf-8")
    assert run(pipeline, "run", experiment)["teacher_passes"] == 1
    path.write_text(yaml.safe_dump({**small, "runs": EXPERIMENT["runs"][:2]}), encoding="utf-8")
    grown = run(pipeline, "run", experiment)
    states = {stage["name"]: stage["state"] for stage in grown["stages"]}
    assert states["student tiny-2x2/pre-joint-seed42"] == "current" and states["student tiny-2x2/post-joint-seed42"] == "missing"


def test_what_a_capture_was_given_is_remembered(pipeline, experiment, tmp_path):
    """A cache captured with --set is meant by `run`, `train` and a repair without them, and never shrinks."""
    given = ["--set", "documents.limit=16", "--set", "targets.k=4"]
    captured = run(pipeline, "cache-teacher", "--shard", "tiny", *given)
    assert captured["splits"]["train"]["documents"] == 16
    assert run(pipeline, "plan", experiment)["stages"][0]["state"] == "current"
    before = {path: path.read_bytes() for path in (tmp_path / "artifacts/caches/tiny/shards").glob("*.arrow")}
    damaged = max(before)
    damaged.write_bytes(before[damaged][:-1])
    repaired = run(pipeline, "cache-teacher", "--shard", "tiny")
    assert repaired["shards_written"] == 1 and repaired["splits"]["train"]["documents"] == 16
    assert before == {path: path.read_bytes() for path in before}
    smaller = run(pipeline, "cache-teacher", "--shard", "tiny", "--set", "documents.limit=4")
    assert smaller["shards_written"] == 0 and smaller["splits"]["train"]["documents"] == 16
    run(pipeline, "cache-teacher", "--shard", "tiny", "--set", "documents.limit=20", "--split", "validation")
    code, _, err = pipeline("train", "--shard", "tiny", "--set", "documents.limit=20")
    assert code == 2 and "covers 16 training documents" in err
    assert run(pipeline, "cache-teacher", "--shard", "tiny", "--set", "documents.limit=20")["splits"]["train"]["documents"] == 20


def test_the_advice_of_a_refusal_can_be_followed(pipeline, experiment):
    """A run that was refused before its first step leaves nothing that refuses the mended one."""
    run(pipeline, "cache-teacher", "--shard", "tiny")
    for refused, advice, mended in (
        (["--zero", "0", "--set", "precision=bfloat16"], "--zero 1", ["--zero", "1", "--set", "precision=bfloat16"]),
        (["--set", "data=fresh", "--set", "steps=50"], "--set data=continue", ["--set", "data=continue"]),
    ):
        name = ["train", "--shard", "tiny", "--set", f"name={refused[-1].split('=')[0]}"]
        code, _, err = pipeline(*name, *refused)
        assert code == 2 and advice in err
        assert run(pipeline, *name, *mended)["steps_executed"] == 2


def test_runs_of_one_name_are_refused(pipeline, experiment, tmp_path):
    path = tmp_path / "manifests/experiments/tiny-2x2.yaml"
    path.write_text(yaml.safe_dump({**EXPERIMENT, "runs": [{"norm": "pre"}, {"norm": "pre", "alpha": 0, "gamma": 1}]}), encoding="utf-8")
    code, _, err = pipeline("plan", experiment)
    assert code == 2 and "two runs are called tiny-2x2/pre-joint-seed42" in err


def test_every_seed_and_learning_rate_is_a_run_of_its_own(pipeline, experiment, tmp_path):
    """One teacher pass for all; a phase is shared within a seed and a learning rate, never across; a new seed leaves the others current."""
    runs = [{"norm": "pre", "curriculum": "grow"}, {"label": "single", "norm": "pre", "curriculum": "joint", "phase_blocks": [1]}]
    several = {**EXPERIMENT, "runs": runs, "seeds": [1], "learning_rates": [1e-2, 5e-3]}
    path = tmp_path / "manifests/experiments/tiny-2x2.yaml"
    path.write_text(yaml.safe_dump(several), encoding="utf-8")
    first = run(pipeline, "run", experiment)
    names = [f"tiny-2x2/{what}-lr{rate}-seed1" for rate in ("0.01", "0.005") for what in ("pre-grow", "single")]
    assert [stage["name"] for stage in first["stages"][1:-1]] == [f"student {name}" for name in names]
    assert [s["steps_executed"] for s in first["students"]] == [4, 0, 4, 0]  # the single block is phase 0 of the grown one
    assert len({s["val_ce"] for s in first["students"]}) == 4 and {s["seed"] for s in first["students"]} == {1}

    path.write_text(yaml.safe_dump({**several, "seeds": [1, 2]}), encoding="utf-8")
    planned = run(pipeline, "plan", experiment)
    assert [stage["state"] for stage in planned["stages"][1:-1]] == ["current"] * 4 + ["missing"] * 4
    shared = {s["run"].removeprefix("tiny-2x2/"): s["phases"][0]["shared_with"] for s in planned["students"]}
    assert shared["single-lr0.005-seed2"] == "tiny-2x2/pre-grow-lr0.005-seed2" and shared["pre-grow-lr0.005-seed2"] is None

    path.write_text(yaml.safe_dump({**several, "learning_rates": [1e-2]}), encoding="utf-8")
    assert [s["run"] for s in run(pipeline, "plan", experiment)["students"]] == ["tiny-2x2/pre-grow-seed1", "tiny-2x2/single-seed1"]
    code, _, err = pipeline("plan", experiment, "--set", "seed=7")
    assert code == 2 and "tiny-2x2 lists seeds=[1]" in err
    path.write_text(yaml.safe_dump({**several, "seeds": [1, 2], "runs": [{"norm": "pre", "name": "mine"}]}), encoding="utf-8")
    code, _, err = pipeline("plan", experiment)
    assert code == 2 and "two runs are called mine; write `label: mine` instead of `name:`" in err


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["train", "--norm", "auto"], ["norm=auto", "'pre' or 'post'"]),
        (["train", "--norm", "post,pre,post"], ["norm=post,pre,post"]),
        (["train", "--norm", "sideways"], ["norm='sideways'"]),
        (["train", "--set", "learning_rat=1"], ["nearest known key is 'learning_rate'"]),
        (["train", "--shard", "nowhere"], ["'nowhere'", "fineweb-10bt"]),
        (["train", "--set", "temperature=-2"], ["temperature=-2"]),
        (["cache-teacher", "--shard", "fineweb-10bt", "--ray-address", "h:1"], ["--ray-address", "add that"]),
        (["cache-teacher", "--shard", "fineweb-10bt", "--set", "steps=4"], ["student's setting", "pipeline train"]),
        (["cache-teacher", "--shard", "fineweb-10bt", "--set", "targets.mode=sampled", "--set", "targets.c=0.3"], ["c = 1/N"]),
        (["cache", "stats", "--shard", "installed-docs"], ["pipeline cache-teacher --shard installed-docs"]),
        (["search"], ["'pipeline search'"]),
        (["evaluate", "no-such-run"], ["no-such-run"]),
        (["report", "no-such-run"], ["no-such-run", "demo-2x2"]),
        (["run", "no-such-experiment"], ["demo-2x2"]),
        (["train", "--sed", "1"], ["--sed"]),
        (["frobnicate"], ["frobnicate"]),
        (["train", "--root", "s3://"], ["s3://", "names no bucket"]),
        (["train", "--set", "model=3", "--set", "model.blocks=2"], ["model=3"]),
        (["shards", "show", "installed-docs", "--set", "documents.duplicates=maybe"], ["documents.duplicates", "'keep' or 'drop'"]),
    ],
)
def test_the_user_s_errors_are_one_line_and_exit_2(pipeline, arguments, parts):
    code, out, err = pipeline(*arguments)
    lines = err.strip().splitlines()
    assert code == 2 and not out and len(lines) == 1 and lines[0].startswith("error: "), err
    assert all(part in lines[0] for part in parts), lines[0]


def test_help_has_an_example_for_every_command(pipeline):
    commands = (
        "demo",
        "train-teacher",
        "cache-teacher",
        "train",
        "evaluate",
        "run",
        "plan",
        "report",
        "doctor",
        "shards ls",
        "shards show",
    )
    for command in commands:
        code, out, _ = pipeline(*command.split(), "--help")
        assert code == 0 and "Example: pipeline" in out, command


def test_doctor_and_shards(pipeline):
    code, out, _ = pipeline("doctor", "--json")
    assert code == 0 and {"packages", "devices", "compilers", "disk_free_gb", "advice"} <= set(json.loads(out))
    code, out, _ = pipeline("shards", "ls", "--json")
    assert code == 0 and {"fineweb-10bt", "installed-docs"} <= {shard["name"] for shard in json.loads(out)["shards"]}
    code, out, _ = pipeline("shards", "show", "fineweb-10bt")
    assert code == 0 and "Qwen/Qwen3-8B-Base" in out


def test_students_at_once_are_told_to_end_and_save(pipeline, experiment, tmp_path):
    """SIGTERM to the command: each student ends its step and writes its state, and no other is begun."""
    run(pipeline, "cache-teacher", "--shard", "tiny")
    arguments = f"-m pipeline run {experiment} --workers 2 --set steps=100000 --set eval_interval=100000".split()
    begun = [tmp_path / f"artifacts/runs/tiny-2x2/{norm}-joint-seed42" for norm in ("pre", "post")]
    with (tmp_path / "said").open("w+") as said:
        environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        process = subprocess.Popen([sys.executable, *arguments], cwd=tmp_path, env=environment, stderr=said)
        try:
            wait_for_updates(begun, process)
            process.terminate()
            assert process.wait(timeout=120) == 2
        finally:
            process.kill()
        said.seek(0)
        assert said.read().splitlines()[-1].startswith("error: interrupted")
    for folder in begun:
        (start,) = json.loads((folder / "provenance.json").read_text())
        assert start["stopped"] and "state saved" in start["ended"] and list(folder.glob("checkpoints/step-*"))
    assert not (tmp_path / "artifacts/runs/tiny-2x2/pre-grow-seed42").exists()


def wait_for_updates(folders, process, seconds=180):
    deadline = time.monotonic() + seconds
    while not all((folder / "metrics.jsonl").is_file() and '"train"' in (folder / "metrics.jsonl").read_text() for folder in folders):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.2)
