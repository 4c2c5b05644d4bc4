"""Run folders as the students leave them, and the report built from them."""

import math

import pytest

from pipeline.contract.run_record import RunFolder
from pipeline.report.build import build_report
from pipeline.report.paper import load_paper

STEPS = 40


def _write_run(root, norm, curriculum, ce, seed=42, shard="installed-docs", fingerprint="ab12", blocks=3, end=True, **settings):
    """A whole run folder: straight lines from CE 11 to `ce`, phases that end 0.2 apart."""
    rate = f"-lr{settings['learning_rate']}" if "learning_rate" in settings else ""
    folder = RunFolder(root / f"{norm}-{curriculum}{rate}-seed{seed}-{shard}")
    folder.path.mkdir(parents=True)
    name = f"demo/{norm}-{curriculum}{rate}-seed{seed}" + ("" if shard == "installed-docs" else f"-{shard}")
    asked = {"norm": norm, "curriculum": curriculum, "seed": seed, "steps": STEPS, "model": {"blocks": blocks, "layers_per_block": 1}}
    config = {"run": name, "shard": shard, "cache_fingerprint": fingerprint, "teacher": "package:tiny", "settings": {**asked, **settings}}
    folder.write("config", config)
    folder.write("provenance", [{"command": ["pipeline", "run", "demo"], "versions": {"torch": "2.13"}}])
    layers = [blocks] if curriculum == "joint" else list(range(1, blocks + 1))
    phases = [_phase(p, n, norm, ce + 0.2 * (len(layers) - 1 - p)) for p, n in enumerate(layers)]
    for phase in phases:
        _metrics(folder, phase, 11.0 if phase["index"] == 0 else phases[phase["index"] - 1]["val_ce"])
    if end:
        folder.write("result", _result(norm, curriculum, seed, phases))
    return folder


def _phase(index, layers, norm, ce):
    values = {"val_ce": ce, "val_kl": ce - 1, "val_kd": ce + 0.03, "val_ppl": math.exp(ce)}
    return {"index": index, "active_blocks": layers, "active_layers": layers, "norm": norm, "steps": STEPS, **values}


def _metrics(folder, phase, start):
    first = STEPS * phase["index"]
    for step in range(1, STEPS + 1):
        loss = start + (phase["val_ce"] - start) * step / STEPS + 0.1 * math.sin(7.0 * step)
        at = {"step": first + step, "phase": phase["index"], "phase_step": step}
        folder.append_metrics({"kind": "train", **at, "train/loss": loss, "train/ce": loss, "growth/active_layers": phase["active_layers"]})
    for step, ce in ((0, start), (STEPS // 2, (start + phase["val_ce"]) / 2), (STEPS, phase["val_ce"])):
        folder.append_metrics({"kind": "val", "step": first + step, "phase": phase["index"], "phase_step": step, "val/ce": ce})


def _result(norm, curriculum, seed, phases):
    tokens = 12_345 * len(phases)
    active = sum(12_345 * phase["active_layers"] for phase in phases)
    counts = {"tokens_total": tokens, "tokens_unique": 12_345, "active_layer_tokens": active, "parameters": 98_765}
    ends = {"val_ce_start": 11.0, "val_tokens": 4_000, "teacher_ce": 2.5, "seconds": 3.25, "resumed_from": 0, "kl_kind": "bucket"}
    steps = STEPS * len(phases)
    return {
        "run": "demo",
        "norm": norm,
        "curriculum": curriculum,
        "seed": seed,
        "phases": phases,
        "steps_executed": steps,
        **counts,
        **ends,
    }


@pytest.fixture
def write_run():
    return _write_run


@pytest.fixture
def four(tmp_path, write_run):
    """The 2x2, each run ending at the CE that the paper publishes for it."""
    published = load_paper().table_1
    return {(c, n): write_run(tmp_path / "runs", n, c, published[c][n]) for c in ("joint", "grow") for n in ("pre", "post")}


@pytest.fixture
def write_grid(tmp_path, write_run):
    """Whole runs for every seed, ending at `ends[curriculum, norm][place of the seed]`."""

    def write(ends, seeds=(42, 43, 44), at="grid", **settings):
        return {
            (*cell, seed): write_run(tmp_path / at, cell[1], cell[0], ce, seed=seed, **settings)
            for cell, values in ends.items()
            for seed, ce in zip(seeds, values, strict=True)
        }

    return write


@pytest.fixture
def undrawn(monkeypatch):
    """Drawing takes most of a report's time; tests of words and numbers do without."""
    monkeypatch.setattr("pipeline.report.figures.drawings", lambda *given: [])


@pytest.fixture
def built():
    """Build a report and read its page: (folders, out, **options) -> (report, page)."""

    def build(folders, out, **options):
        report = build_report("demo-2x2", list(folders), out, **options)
        return report, report.page.read_text(encoding="utf-8")

    return build
