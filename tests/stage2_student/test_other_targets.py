"""Training from samples, from thresholds, at another temperature, and with processes that read ahead."""

import json

import pytest
from runs import capture, metrics, train_arguments

SHORT = {"steps": 2, "eval_interval": 2, "model.blocks": 1}


def losses(root, name):
    return [(m["step"], m["train/loss"], m["train/kl"], m["train/ce"]) for m in metrics(root / "runs" / name, "train")]


@pytest.fixture(scope="module")
def root_of(tmp_path_factory):
    """An artifact root with a capture of the tiny shard under other targets."""

    def make(*sets):
        folder = tmp_path_factory.mktemp("targets")
        capture(folder, *sets)
        return folder / "artifacts"

    return make


@pytest.fixture(scope="module")
def sampled(root_of):
    return root_of("targets.mode=sampled", "targets.c=1/16", "targets.entropy=true")


@pytest.fixture(scope="module")
def warm(root_of):
    return root_of("targets.temperatures=[1,2]")


def train(pipeline, root, name, **changes):
    code, out, err = pipeline(*train_arguments(root, name, **(SHORT | changes)))
    assert code == 0, err
    return json.loads(out)


def test_a_sample_is_trained_on_as_a_sample(pipeline, sampled):
    result = train(pipeline, sampled, "sampled")
    assert result["kl_kind"] == "sampled"
    assert result["val_ce"] < result["val_ce_start"]


def test_a_threshold_is_trained_on_as_a_bucket(pipeline, root_of):
    result = train(pipeline, root_of("targets.mode=threshold", "targets.c=0.02", "targets.k=20"), "threshold")
    assert result["kl_kind"] == "bucket" and result["val_kl"] > 0


@pytest.mark.parametrize("setting", ["tail=bucket", "tail=renormalize"])
def test_another_tail_on_a_sample_is_one_line(pipeline, sampled, setting):
    key, _, value = setting.partition("=")
    code, _, err = pipeline(*train_arguments(sampled, "refused", **{key: value}))
    assert code == 2 and err.splitlines()[-1].startswith(f"error: {setting}: the cache holds targets.mode=sampled; use --set tail=auto")


def test_a_sampled_tail_on_kept_entries_is_one_line(pipeline, root):
    code, _, err = pipeline(*train_arguments(root, "refused", tail="sampled"))
    assert code == 2 and "tail=sampled: the cache holds targets.mode=topk" in err


def test_a_captured_temperature_is_trained_at(pipeline, warm):
    cool, hot = train(pipeline, warm, "cool", temperature=1), train(pipeline, warm, "hot", temperature=2)
    assert hot["val_kl"] < cool["val_kl"]  # flatter teachers and students are closer
    assert hot["phases"][0]["steps"] == 2


def test_a_temperature_that_was_not_captured_is_one_line(pipeline, warm):
    code, _, err = pipeline(*train_arguments(warm, "refused", temperature=3))
    assert code == 2
    assert "temperature=3: the cache was captured for 1, 2" in err and "targets.temperatures=[1,3]" in err


def test_reading_ahead_changes_nothing(pipeline, root):
    for workers in (0, 2):
        train(pipeline, root, f"workers-{workers}", steps=3, loader_workers=workers)
    assert losses(root, "workers-0") == losses(root, "workers-2")
    assert len(losses(root, "workers-0")) == 3
