"""`pipeline cache ls|show|stats|verify` on a real capture; figures recomputed from the documents."""

import json
import shutil

import numpy as np
import pytest
from captures import COUNTS, MAX_LENGTH, everything, parquet, shard, take, write_shard_yaml
from tiny_teacher import write_teacher

KEYS = {"fingerprint", "targets", "codec", "documents", "tokens", "entries_per_token", "bytes", "bytes_per_token", "mass_kept"}
KEYS |= {"kl_mean", "kl_p99", "top1_agreement", "teacher_ce"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A manifest file, and the cache that was captured by it."""
    folder = tmp_path_factory.mktemp("made")
    inputs = write_teacher(folder / "teacher"), parquet(folder)
    take(shard(*inputs, cache={"codec": "plain"}), folder / "tiny")
    return write_shard_yaml(folder, *inputs, cache={"codec": "plain"}), folder / "tiny"


@pytest.fixture
def cached(pipeline, made, tmp_path):
    """A copy of the cache, and a function that runs `pipeline cache COMMAND` on it."""
    cache = shutil.copytree(made[1], tmp_path / "artifacts/caches/tiny")
    return cache, lambda command, *more: pipeline("cache", command, "--shard", made[0], *more)


def payloads(cache):
    return sorted((cache / "shards").glob("*.arrow"))


def flip_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def test_stats_are_the_documents_own(cached):
    cache, run = cached
    code, out, err = run("stats", "--json")
    assert code == 0, err
    figures, documents = json.loads(out), everything(cache)
    assert set(figures) >= KEYS
    tokens = sum(min(count, MAX_LENGTH - 1) for count in [count for count in COUNTS if count][:17])
    assert (figures["documents"], figures["tokens"], figures["entries_per_token"]) == (17, tokens, 8)
    assert figures["targets"]["mode"] == "topk"
    assert figures["bytes"] == sum(path.stat().st_size for path in payloads(cache))
    assert figures["bytes_per_token"] == pytest.approx(figures["bytes"] / tokens)
    tails = np.concatenate([document.tail_logprob for document in documents]).astype(np.float64)
    labels = np.concatenate([document.label_logprob for document in documents]).astype(np.float64)
    assert figures["mass_kept"] == pytest.approx((1 - np.exp(tails)).mean(), rel=1e-9)
    assert figures["teacher_ce"] == pytest.approx(-labels.mean(), rel=1e-9)
    assert figures["top1_agreement"] == 1.0
    assert figures["rescored_rows"] > 0
    assert -1e-7 < figures["kl_mean"] < 1e-5  # float16 log-probabilities
    assert figures["kl_mean"] <= figures["kl_p99"] * 1.3
    assert figures["kl_max"] < 1e-4


def test_stats_for_people(cached):
    code, out, _ = cached[1]("stats")
    assert code == 0
    assert all(key in out for key in KEYS)


def test_stats_of_a_sample_speak_of_gradients(pipeline, made, tmp_path):
    model, documents = made[0].parent / "teacher", made[0].parent / "documents.parquet"
    take(shard(model, documents, targets={"mode": "sampled", "c": 1 / 16}), tmp_path / "artifacts/caches/tiny")
    figures = json.loads(pipeline("cache", "stats", "--shard", "tiny", "--json")[1])
    assert figures["kl_mean"] is None and figures["codec"] == "streams"
    assert figures["gradient_error"] > 0 and 1 <= figures["noise_ratio"] < 1.5 and abs(figures["certain_bias"]) < 0.05
    assert pipeline("cache", "stats", "--shard", "tiny")[0] == 0


def test_stats_say_what_coding_costs_at_every_temperature(pipeline, made, tmp_path):
    model, documents = made[0].parent / "teacher", made[0].parent / "documents.parquet"
    manifest = shard(model, documents, targets={"temperatures": [1, 2, 4]}, cache={"codec": "ranks"})
    take(manifest, tmp_path / "artifacts/caches/tiny")
    figures = json.loads(pipeline("cache", "stats", "--shard", "tiny", "--json")[1])
    there = figures["at_temperature"]
    assert set(there) == {"2", "4"}
    kept = [figures["mass_kept"], there["2"]["mass_kept"], there["4"]["mass_kept"]]
    assert kept == sorted(kept, reverse=True) and kept[2] < 0.9 * kept[0]  # a flatter row has more in its tail
    errors = [figures["kl_mean"], there["2"]["kl_mean"], there["4"]["kl_mean"]]
    assert errors == sorted(errors, reverse=True) and errors[2] > 0  # an error of the logarithm shrinks as it is divided
    assert "kl_mean_at_2" in pipeline("cache", "stats", "--shard", "tiny")[1]


@pytest.mark.parametrize("deep", [[], ["--deep"]])
def test_verify_passes_a_whole_cache(cached, deep):
    code, out, err = cached[1]("verify", *deep, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {"ok": True, "shards": 5, "bad": []}
    code, out, _ = cached[1]("verify", *deep)
    assert code == 0
    assert "5 shards, all as written" in out


def test_a_flipped_bit_needs_the_deep_look(cached):
    cache, run = cached
    harmed = payloads(cache)[1]
    flip_bit(harmed)
    assert run("verify")[0] == 0
    code, out, _ = run("verify", "--deep", "--json")
    assert code == 2
    (bad,) = json.loads(out)["bad"]
    assert (bad["shard"], bad["file"]) == (harmed.name[:11], f"shards/{harmed.name}")
    code, out, err = run("verify", "--deep")
    assert code == 2
    assert harmed.name in out
    assert err.startswith("error: ")
    assert "run 'pipeline cache repair --shard" in err
    assert err.count("\n") == 1


def test_a_truncated_payload_shows_at_once(cached):
    cache, run = cached
    harmed = payloads(cache)[0]
    harmed.write_bytes(harmed.read_bytes()[:-1])
    code, out, _ = run("verify", "--json")
    assert code == 2
    assert [bad["shard"] for bad in json.loads(out)["bad"]] == [harmed.name[:11]]


def test_a_lost_teacher_file_shows(cached):
    cache, run = cached
    (cache / "teacher" / "config.json").unlink()
    code, out, _ = run("verify", "--json")
    assert code == 2
    assert json.loads(out)["bad"] == [{"shard": "teacher/config.json", "file": "teacher/config.json", "reason": "is missing"}]


def test_show_ends_with_the_separator(cached):
    cache, run = cached
    code, out, err = run("show", "--document", "0", "--tokens", "0:100", "--split", "validation", "--json")
    assert code == 0, err
    rows = json.loads(out)["rows"]
    assert len(rows) == COUNTS[0]
    assert [row["t"] for row in rows] == list(range(len(rows)))
    assert rows[-1]["label"] == "<|endoftext|>"
    assert [row["label"] for row in rows[:-1]] == [row["token"] for row in rows[1:]]
    document = everything(cache)[14]
    for row in rows:
        best = row["best"]
        assert [entry["id"] for entry in best] == document.row(row["t"])[0][:5].tolist()
        assert best == sorted(best, key=lambda entry: -entry["probability"])
        assert row["tail_mass"] == pytest.approx(float(document.tail_mass[row["t"]]))
    assert "<|endoftext|>" in run("show", "--document", "0", "--split", "validation")[1]


@pytest.mark.parametrize(("option", "value"), [("--document", "99"), ("--tokens", "a:b"), ("--split", "test")])
def test_show_refuses_what_is_not_there(cached, option, value):
    code, _, err = cached[1]("show", option, value)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_ls_lists_finished_caches_only(cached, pipeline):
    cache, run = cached
    (cache.parent / "half" / "shards").mkdir(parents=True)
    code, out, _ = pipeline("cache", "ls", "--json")
    (row,) = json.loads(out)["caches"]
    stats = json.loads(run("stats", "--json")[1])
    assert code == 0
    assert row == {"shard": "tiny", "fingerprint": stats["fingerprint"], "tokens": stats["tokens"]}
    assert "tiny" in pipeline("cache", "ls")[1]


def test_ls_goes_on_past_a_damaged_cache(cached, pipeline):
    cache, _ = cached
    shutil.copytree(cache, cache.parent / "another")
    flip_bit(cache / "manifest.json")
    code, out, err = pipeline("cache", "ls", "--json")
    assert code == 0
    assert [row["shard"] for row in json.loads(out)["caches"]] == ["another"]
    assert "not listed: artifacts/caches/tiny/manifest.json: " in err and "run 'pipeline cache repair --shard tiny'" in err


def test_no_cache_names_the_command(pipeline, tmp_path):
    manifest = write_shard_yaml(tmp_path, tmp_path / "teacher", tmp_path / "documents.parquet")
    code, out, err = pipeline("cache", "stats", "--shard", manifest)
    assert (code, out) == (2, "")
    assert "pipeline cache-teacher --shard" in err
    assert err.count("\n") == 1
