"""Manifests: what ships parses, what is misspelt is named, and the wheel carries them to another folder."""

import json
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

from pipeline.contract.errors import ManifestError
from pipeline.contract.manifest.experiment import ExperimentManifest
from pipeline.contract.manifest.find import load_experiment, load_shard, names, shipped_folder, student_settings
from pipeline.contract.manifest.overrides import read_overrides, split_by_owner
from pipeline.contract.manifest.strict import parse

ROOT = Path(__file__).parents[1]
SHARDS = sorted((ROOT / "manifests/shards").glob("*.yaml"))
EXPERIMENTS = sorted((ROOT / "manifests/experiments").glob("*.yaml"))


@pytest.mark.parametrize("path", SHARDS, ids=lambda path: path.stem)
def test_every_shipped_shard_parses(path):
    shard = load_shard(str(path))
    assert shard.name == path.stem
    student_settings(shard, source=str(path))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_every_shipped_experiment_parses(path):
    experiment = load_experiment(str(path))
    assert experiment.name == path.stem
    for layer in experiment.layers:
        student_settings(load_shard(experiment.shard, experiment.set), layer, source=str(path))


def test_the_paper_s_settings_are_the_defaults_of_paper_2x2():
    paper = tomllib.loads((ROOT / "pipeline/report/paper.toml").read_text(encoding="utf-8"))
    experiment = load_experiment("paper-2x2")
    shard = load_shard(experiment.shard)
    run, optimizer = paper["run"], paper["optimizer"]
    for settings in (student_settings(shard, layer, source="paper-2x2") for layer in experiment.layers):
        assert (settings.model.blocks, settings.model.layers_per_block, settings.steps) == (
            run["blocks"],
            run["layers_per_block"],
            run["steps_per_phase"],
        )
        assert (settings.global_batch_size, settings.seed, settings.eval_interval) == (
            run["global_batch"],
            run["seed"],
            run["eval_interval"],
        )
        assert [settings.adam_beta1, settings.adam_beta2] == optimizer["betas"]
        assert (settings.adam_epsilon, settings.weight_decay, settings.gradient_clip) == (
            optimizer["eps"],
            optimizer["weight_decay"],
            optimizer["gradient_clip"],
        )
        assert (settings.learning_rate, settings.learning_rate_min) == (optimizer["lr_peak"], optimizer["lr_min"])
        assert (settings.alpha, settings.gamma, settings.temperature) == (optimizer["alpha"], optimizer["gamma"], optimizer["temperature"])
    assert shard.documents.limit == run["steps_per_phase"] * run["global_batch"]
    assert (shard.documents.validation.documents, shard.documents.max_length) == (run["validation_documents"], run["max_length"])
    assert shard.teacher.model == run["teacher"]
    assert {(r["norm"], r["curriculum"]) for r in experiment.runs} == {(n, c) for n in ("pre", "post") for c in ("joint", "grow")}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("documents.limt=3", "nearest known key is 'documents.limit'"),
        ("learning_rat=3", "nearest known key is 'learning_rate'"),
        ("k=3", "nearest known key is 'targets.k'"),
        ("steps", "no key=value form"),
        ("steps=[", "is not a YAML value"),
    ],
)
def test_a_wrong_override_is_named(override, message):
    with pytest.raises(ManifestError, match=message.replace("'", ".")):
        split_by_owner(read_overrides([override]))


@pytest.mark.parametrize("key", ["targets.k=256", "targets.k=0", "documents.max_length=1", "teacher.dtype=int8", "documents.source=csv"])
def test_a_value_out_of_its_rule_is_named(key):
    name, value = key.split("=")
    with pytest.raises(ManifestError, match=f"{name}=.*{value}"):
        load_shard("installed-docs", read_overrides([key]))


def test_unknown_keys_of_an_experiment_name_the_nearest():
    with pytest.raises(ManifestError, match="nearest known key is 'student'"):
        parse(ExperimentManifest, {"name": "x", "shard": "y", "runs": [{}], "studnt": {}}, "x.yaml")


SEVERAL = {"name": "x", "shard": "y", "runs": [{"norm": "pre", "label": "a"}, {"norm": "post"}], "student": {"steps": 3}}


def test_an_experiment_trains_each_run_for_each_seed_and_learning_rate():
    listed = yaml.safe_load("{seeds: [42, 43], learning_rates: [1e-3, 3e-3]}")
    experiment = parse(ExperimentManifest, SEVERAL | listed, "x.yaml")
    assert experiment.labels == ["a", None] * 4
    found = [(layer["seed"], layer["learning_rate"], layer["norm"], layer["steps"]) for layer in experiment.layers]
    assert found == [(seed, rate, norm, 3) for seed in (42, 43) for rate in (1e-3, 3e-3) for norm in ("pre", "post")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"seeds": [42, 42]}, "seeds=.42, 42.: lists one value twice"),
        ({"learning_rates": ["1e-3", 0.001]}, "lists one value twice"),
        ({"seeds": [1], "student": {"seed": 2}}, "`seed` is also set under student or runs"),
        ({"learning_rates": [1e-3], "runs": [{"learning_rate": 2e-3}]}, "`learning_rate` is also set"),
        ({"learning_rates": [0.0]}, "learning_rates.0=0.0"),
        ({"seed": [1, 2]}, "nearest known key is 'seeds'"),
    ],
)
def test_a_list_of_seeds_or_learning_rates_that_cannot_be_meant_is_named(given, message):
    with pytest.raises(ManifestError, match=message):
        parse(ExperimentManifest, SEVERAL | given, "x.yaml")


def test_values_are_read_as_yaml_and_scientific_numbers_as_numbers():
    assert read_overrides(["a=1e-4", "b=true", "c=[x, y]", "d=/path", "e=null"]) == {
        "a": 1e-4,
        "b": True,
        "c": ["x", "y"],
        "d": "/path",
        "e": None,
    }


def test_search_order(tmp_path, monkeypatch):
    def put(folder, about):
        (folder / "shards").mkdir(parents=True)
        data = yaml.safe_load((ROOT / "manifests/shards/installed-docs.yaml").read_text(encoding="utf-8")) | {"about": about}
        (folder / "shards" / "installed-docs.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        return folder / "shards" / "installed-docs.yaml"

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIPELINE_HOME", str(tmp_path / "home"))
    assert names("shards")["installed-docs"] == shipped_folder() / "shards/installed-docs.yaml"
    put(tmp_path / "home/manifests", "home")
    assert load_shard("installed-docs").about == "home"
    put(tmp_path / "manifests", "here")
    assert load_shard("installed-docs").about == "here"
    assert load_shard(str(put(tmp_path / "elsewhere", "path"))).about == "path"
    with pytest.raises(ManifestError, match="installed-docs"):
        load_shard("no-such-shard")


def test_the_wheel_carries_the_manifests(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    listed = set(zipfile.ZipFile(wheel).namelist())
    assert {"pipeline/_manifests/shards/fineweb-10bt.yaml", "pipeline/report/page.html.j2", "pipeline/report/paper.toml"} <= listed
    venv.create(tmp_path / "env", system_site_packages=False, with_pip=True)
    python = tmp_path / "env/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], check=True, capture_output=True)
    (tmp_path / "env/lib").joinpath(f"python{sys.version_info.major}.{sys.version_info.minor}/site-packages/outer.pth").write_text(
        "\n".join(path for path in sys.path if path.endswith("site-packages")), encoding="utf-8"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shown = subprocess.run(
        [tmp_path / "env/bin/pipeline", "shards", "show", "fineweb-10bt", "--json"],
        cwd=elsewhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(shown.stdout)["documents"]["limit"] == 3_200_000
    where = subprocess.run(
        [python, "-c", "import pipeline; print(pipeline.__file__)"], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert str(tmp_path) in where.stdout
