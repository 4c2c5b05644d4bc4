"""A pilot's figures are those of a dense forward, of a real capture, and of plain arithmetic."""

import json
import math
from itertools import count

import numpy as np
import pytest
from captures import SECTIONS, TEXTS, parquet, reference, shard, take, write_shard_yaml
from tiny_teacher import text, write_teacher

from pipeline.commands.pilot import print_pilot
from pipeline.contract.logit_cache.index import read_manifest
from pipeline.contract.manifest.shard import CacheLayout, Documents, Targets
from pipeline.contract.store import LocalStore
from stage1_teacher.calibration import token_counts
from stage1_teacher.documents.base import RawDocument
from stage1_teacher.engines.transformers_engine import TransformersEngine
from stage1_teacher.piloting import costs
from stage1_teacher.piloting.costs import Cost, codecs, halves, measure_costs, wanted_targets
from stage1_teacher.piloting.curve import mass_curve
from stage1_teacher.piloting.narrow import narrow
from stage1_teacher.piloting.pilot import FirstDocuments, PilotRequest, pilot
from stage1_teacher.piloting.totals import extrapolate, shard_documents
from stage1_teacher.rule import find_inputs
from stage1_teacher.shard_plan import split_of
from stage1_teacher.teacher_files import TeacherFiles
from stage1_teacher.tokenization import DocumentTokenizer

VOCAB = 300
ONE_SHARD = {"documents_per_shard": 100, "tokens_per_batch": 4096}
FILE_BYTES = 9000  # schema, footer and one batch's description of one more payload
FIFTY = [text(15 + i % 9, i) for i in range(50)]
WHOLE = {"limit": 49, "validation": {"documents": 1}}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A teacher whose rows are neither flat nor certain, and documents."""
    folder = tmp_path_factory.mktemp("pilot")
    write_teacher(folder / "teacher", vocab_size=VOCAB)
    parquet(folder, FIFTY, "fifty.parquet")
    parquet(folder, name="few.parquet")
    return folder


def manifest(home, files="fifty.parquet", **sections):
    return shard(home / "teacher", home / files, **sections)


@pytest.fixture(scope="module")
def piloted(home):
    """All fifty documents of a shard of fifty."""
    return pilot(PilotRequest(manifest(home, documents=WHOLE, targets={"k": 64}, cache=ONE_SHARD)))


@pytest.fixture(scope="module")
def engine(home):
    made = TransformersEngine(TeacherFiles(home / "teacher"), manifest(home))
    made.head = made.head * 3  # peaked rows: all bands of entropy
    return made


@pytest.fixture(scope="module")
def ids(home):
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCAB, length).astype(np.int32) for length in (24, 1, 2, 17, 24, 9)]


def test_the_curve_is_a_dense_forward_s(home, piloted):
    tokenizer = DocumentTokenizer(TeacherFiles(home / "teacher"), manifest(home).documents)
    dense = np.concatenate(reference(home / "teacher", tokenizer.encode(FIFTY)))
    masses = np.sort(np.exp(dense), axis=1)[:, ::-1].cumsum(axis=1)
    curve = piloted.curve
    assert curve.k == [1, 2, 4, 8, 16, 32, 64, 128, 255]
    assert set(curve.bands) == {"all", "above 3"} and (-(np.exp(dense) * dense).sum(axis=1) > 3).all()
    for band in curve.bands.values():
        rows = masses[:, np.array(curve.k) - 1]
        assert band.rows == len(rows) == piloted.tokens
        np.testing.assert_allclose(band.mean, rows.mean(axis=0), atol=1e-5)
        np.testing.assert_allclose(band.p10, np.quantile(rows, 0.1, axis=0), atol=1e-5)
        np.testing.assert_allclose(band.p50, np.median(rows, axis=0), atol=1e-5)


def test_bands_of_the_curve_add_up(engine, ids):
    curve = mass_curve(engine.score(ids, Targets(k=255)))
    bands = {name: band for name, band in curve.bands.items() if name != "all"}
    assert len(bands) > 1
    assert sum(band.rows for band in bands.values()) == curve.bands["all"].rows == sum(len(each) - 1 for each in ids)
    weighted = sum(band.rows * np.array(band.mean) for band in bands.values()) / curve.bands["all"].rows
    np.testing.assert_allclose(weighted, curve.bands["all"].mean)


def test_one_pass_for_many_targets_is_many_passes(engine, ids):
    many = [Targets(k=5), Targets(mode="sampled", c=1 / 64), Targets(mode="threshold", k=9, c=0.01, temperatures=[1.0, 2.0])]
    for targets, documents in zip(many, engine.score_many(ids, many), strict=True):
        for one, other in zip(documents, engine.score(ids, targets), strict=True):
            for name in ("counts", "ids", "logprobs", "tail_logprob", "label_logprob", "entropy"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@pytest.mark.parametrize("wanted", [Targets(k=7), Targets(mode="threshold", k=255, c=0.01), Targets(mode="threshold", k=3, c=0.001)])
@pytest.mark.parametrize("temperatures", [[1.0], [1.0, 2.0]])
def test_narrowed_rows_are_the_engine_s_own(engine, ids, wanted, temperatures):
    wanted = wanted.model_copy(update={"temperatures": temperatures})
    widest = engine.score(ids, Targets(k=255, temperatures=temperatures))
    for wide, exact in zip(widest, engine.score(ids, wanted), strict=True):
        found = narrow(wide, wanted.k, wanted.c if wanted.mode == "threshold" else 0.0)
        for name in ("counts", "ids", "logprobs"):
            np.testing.assert_array_equal(getattr(found, name), getattr(exact, name))
        np.testing.assert_allclose(found.tail_logprob, exact.tail_logprob, atol=2e-5)
        for tau, tail in exact.other_tails.items():
            np.testing.assert_allclose(found.other_tails[tau], tail, atol=2e-5)


@pytest.mark.parametrize(
    ("label", "targets", "codec"),
    [
        ("topk k=64", {"k": 64}, "plain"),
        ("topk k=64", {"k": 64}, "ranks"),
        ("threshold c=0.001", {"mode": "threshold", "k": 255, "c": 0.001}, "ranks"),
        ("sampled c=1/128", {"mode": "sampled"}, "streams"),
    ],
)
def test_bytes_a_token_are_a_capture_s(home, piloted, tmp_path, label, targets, codec):
    (cost,) = [cost for cost in piloted.costs if (cost.label, cost.codec) == (label, codec)]
    taken = take(manifest(home, documents=WHOLE, targets=targets, cache={**ONE_SHARD, "codec": codec}), tmp_path / "cache").manifest
    tokens, size = sum(each.tokens for each in taken.shards), sum(each.payload.bytes for each in taken.shards)
    assert (cost.rows, piloted.totals.documents, piloted.totals.tokens) == (tokens, 50, tokens)
    assert cost.asked == (label == "topk k=64")
    assert abs(cost.bytes_per_token * tokens - size) < (len(taken.shards) - 1) * FILE_BYTES
    assert cost.vocabulary_bytes == (taken.vocabulary.bytes if taken.vocabulary else 0)
    assert cost.mass_kept == pytest.approx(sum(each.mass_kept_sum for each in taken.shards) / tokens, rel=1e-5)
    assert cost.entries_per_token == pytest.approx(sum(each.entries for each in taken.shards) / tokens, rel=1e-3)


@pytest.mark.parametrize("codec", ["plain", "ranks"])
def test_the_very_documents_give_the_very_bytes(home, tmp_path, codec):
    """No tolerance at all: what a capture's shard weighs and what `measure_costs` says of its documents."""
    asked = manifest(home, documents={"limit": 30}, targets={"k": 16}, cache={**ONE_SHARD, "codec": codec})
    taken = take(asked, tmp_path / "cache", split="train").manifest
    inputs, scorer = find_inputs(asked), TransformersEngine(TeacherFiles(home / "teacher"), asked)
    tokenizer = DocumentTokenizer(inputs.teacher, asked.documents)
    scored = scorer.score(tokenizer.encode([each for i, each in enumerate(FIFTY) if i % 4 or i > 8][:30]))
    counts = np.zeros(VOCAB, dtype=np.int64)
    counts[: tokenizer.size] = token_counts(inputs.documents, tokenizer, asked.cache.vocabulary_tokens)
    costs = {cost.codec: cost for cost in measure_costs(scored, asked.targets, asked.cache, counts, True, codec)}
    (train,) = taken.splits["train"].shards
    assert costs[codec].bytes_per_token == train.payload.bytes / train.tokens


def test_clusters_are_fitted_to_one_half_and_measured_on_the_other(engine, monkeypatch):
    monkeypatch.setattr(costs, "CLUSTER_ROWS", 150)
    rng = np.random.default_rng(1)
    documents = engine.score([rng.integers(0, VOCAB, 24).astype(np.int32) for _ in range(20)], Targets(k=16))
    first, second = halves(documents)
    assert [*first, *second] == documents and abs(len(first) - len(second)) <= 1
    *others, clustered = measure_costs(documents, Targets(k=16), CacheLayout(), np.ones(VOCAB, dtype=np.int64), False, "ranks")
    assert [cost.codec for cost in others] == ["plain", "ranks"]
    assert clustered.codec == "clusters"
    assert (clustered.fitted_rows, clustered.rows) == (sum(each.tokens for each in first), sum(each.tokens for each in second))
    assert {cost.rows for cost in others} == {460}


def test_what_is_compared():
    labels = [Cost(t, "", False, 1, 0, 1, 1, 0, 1, {}).label for t in wanted_targets(Targets(), 1000)]
    assert labels[:4] == ["topk k=16", "topk k=32", "topk k=64", "topk k=128"]
    assert labels[4:7] == ["threshold c=0.01", "threshold c=0.001", "threshold c=0.0001"]
    assert labels[7:] == ["sampled c=1/64", "sampled c=1/128", "sampled c=1/254"]
    assert len(wanted_targets(Targets(k=50), 1000)) == 11
    assert [t.k for t in wanted_targets(Targets(k=16), 60) if t.mode == "topk"] == [16, 32]
    several = wanted_targets(Targets(temperatures=[1.0, 2.0], entropy=True), 1000)
    assert {tuple(t.temperatures) for t in several if t.mode != "sampled"} == {(1.0, 2.0)} and all(t.entropy for t in several)
    assert codecs(Targets(), "raw") == ["raw", "plain", "ranks"]
    assert codecs(Targets(mode="sampled"), "ranks") == ["plain", "ranks", "streams"]


@pytest.mark.parametrize(
    ("limit", "validation", "every"), [(48, 8, 7), (10, 8, 7), (1, 3, 2), (12, 4, 4), (13, 4, 4), (3_200_000, 4833, 16)]
)
def test_documents_of_the_whole_shard(limit, validation, every):
    documents = Documents.model_validate({"source": "text", "limit": limit, "validation": {"documents": validation, "every": every}})
    if limit > 1000:
        assert shard_documents(documents) == limit + validation
        return
    train = 0
    for kept in count():
        train += split_of(kept, documents) == "train"
        if train == limit:
            break
    assert shard_documents(documents) == kept + 1


def test_extrapolation_is_arithmetic():
    whole = extrapolate([100, 200, 300, 400], 1000, tokens_per_second=50.0, gpus=4, price=2.5)
    assert (whole.tokens_per_document, whole.tokens) == (250, 250_000)
    assert whole.tokens_per_document_se == pytest.approx(np.std([100, 200, 300, 400], ddof=1) / 2 * math.sqrt(1 - 4 / 1000))
    assert whole.tokens_se == pytest.approx(1000 * whole.tokens_per_document_se)
    assert whole.gpu_hours == pytest.approx(250_000 / 50 / 3600)
    assert whole.gpu_hours_se / whole.gpu_hours == pytest.approx(whole.tokens_se / whole.tokens)
    assert whole.hours == pytest.approx(whole.gpu_hours / 4)
    assert whole.money == pytest.approx(whole.gpu_hours * 2.5)


def test_what_is_not_known_is_not_said():
    assert extrapolate([10], 100, 1.0).tokens_se is None
    assert extrapolate([10, 20], 100, 1.0).money is None
    exact = extrapolate([10, 20], 2, 1.0)
    assert (exact.tokens, exact.tokens_se, exact.gpu_hours_se) == (30, 0.0, 0.0)


def test_the_standard_error_is_that_of_repeated_pilots():
    rng = np.random.default_rng(0)
    lengths = rng.integers(10, 500, 400)
    pilots = [extrapolate(rng.choice(lengths, 100, replace=False).tolist(), 400, 1.0) for _ in range(2000)]
    assert np.std([each.tokens for each in pilots]) == pytest.approx(np.mean([each.tokens_se for each in pilots]), rel=0.05)


def test_first_documents_are_the_kept_ones_in_order():
    skips = [None, "empty", None, "null", None]
    raw = [RawDocument(None if skip else f"text {i}", f"{i}", skip) for i, skip in enumerate(skips)]
    first = FirstDocuments.read(iter(raw), 2)
    assert (first.texts, first.origins, first.skipped, first.is_all) == (["text 0", "text 2"], ["0", "2"], {"empty": 1}, False)
    everything = FirstDocuments.read(iter(raw), 3)
    assert everything.origins == ["0", "2", "4"] and everything.is_all
    assert everything.skipped == {"empty": 1, "null": 1}


def test_json_has_all_of_it_and_nothing_is_written(pipeline, home, tmp_path):
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet", targets={"k": 8})
    arguments = ("--shard", path, "--documents", "6", "--gpus", "2", "--price", "3.5", "--json")
    code, out, err = pipeline("pilot", *arguments)
    assert code == 0, err
    found = json.loads(out)
    assert (found["documents"], found["skipped"], found["device"]) == (6, {"empty": 1, "null": 1}, "cpu")
    asked = {row["label"] for row in found["targets"] if row["asked"]}
    assert asked == {"topk k=8"} and found["codec"] == "ranks"
    whole = found["whole"]
    assert whole["documents"] == SECTIONS["documents"]["limit"] + 3
    assert whole["gpu_hours"] == pytest.approx(whole["tokens"] / found["tokens_per_second"] / 3600)
    assert (whole["hours"], whole["money"]) == (pytest.approx(whole["gpu_hours"] / 2), pytest.approx(whole["gpu_hours"] * 3.5))
    for row in found["targets"]:
        assert row["disk_bytes"] == pytest.approx(row["bytes_per_token"] * whole["tokens"] + row["vocabulary_bytes"])
        assert (row["kl_mean"] is None) == (row["targets"]["mode"] == "sampled") == ("gradient_error" in row)
    assert any("CPU" in note for note in found["notes"])
    assert "6/6 documents scored" in err
    assert not (tmp_path / "artifacts").exists()


def test_the_documents_hash_is_the_cache_s(pipeline, home, tmp_path):
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet")
    found = json.loads(pipeline("pilot", "--shard", path, "--documents", "2", "--json")[1])
    assert found["whole"]["money"] is None
    assert pipeline("cache-teacher", "--shard", path)[0] == 0
    assert json.loads(pipeline("cache", "stats", "--shard", path, "--json")[1])["documents_hash"] == found["documents_hash"]


def test_more_documents_than_there_are_leave_no_error(home):
    found = pilot(PilotRequest(manifest(home, "few.parquet", documents={"limit": 1000}), documents=500))
    kept = sum(1 for each in TEXTS if each and each.strip())
    assert (found.documents, found.totals.documents, found.totals.tokens_se) == (kept, kept, 0.0)
    assert found.totals.tokens == found.tokens


def test_text_has_the_three_parts(pipeline, home, tmp_path):
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet")
    code, out, err = pipeline("pilot", "--shard", path, "--documents", "2", "--price", "1")
    assert code == 0, err
    assert all(
        part in out for part in ("Mass of the k largest", "* topk k=8", "sampled c=1/254", "Whole shard: 17 documents", "± ", "money")
    )


def test_without_a_price_no_money_is_named(piloted, capsys):
    print_pilot(piloted, gpus=8)
    out = capsys.readouterr().out
    assert "money" not in out and "hours on 8 of them" in out and "50 documents" in out


def test_a_shard_s_plan_points_to_the_pilot(pipeline, home, tmp_path):
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet")
    code, out, err = pipeline("plan", "--shard", path)
    assert code == 0, err
    assert "missing  cache tiny: no finished cache" in out and "17 documents" in out and "pipeline pilot --shard" in out
    assert pipeline("cache-teacher", "--shard", path)[0] == 0
    found = json.loads(pipeline("plan", "--shard", path, "--json")[1])
    stats = json.loads(pipeline("cache", "stats", "--shard", path, "--json")[1])
    assert [stage["state"] for stage in found["stages"]] == ["current"]
    assert (found["teacher_passes"], found["tokens"], found["cache_bytes"]) == (0, stats["tokens"], stats["bytes"])
    assert pipeline("plan")[0] == 2 and pipeline("plan", "demo-2x2", "--shard", path)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--set", "steps=4"], "student's setting"),
        (["--engine", "vllm"], "engine=vllm"),
        (["--set", "documents.limit=0"], "documents.limit"),
    ],
)
def test_the_user_s_errors_are_one_line(pipeline, home, tmp_path, without_vllm, arguments, part):
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet")
    code, out, err = pipeline("pilot", "--shard", path, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert part in err


def test_a_pilot_leaves_a_cache_alone(pipeline, home, tmp_path):
    """It may be run beside one: the settings of its capture are taken, and no file of it is touched."""
    path = write_shard_yaml(tmp_path, home / "teacher", home / "few.parquet")
    assert pipeline("cache-teacher", "--shard", path, "--set", "targets.k=5")[0] == 0
    cache = LocalStore(tmp_path / "artifacts/caches/tiny")
    before = {name: cache.hash(name) for name in cache.names()}
    code, out, err = pipeline("pilot", "--shard", path, "--documents", "2", "--json")
    assert code == 0 and "targets.k=5" in err
    assert {row["label"] for row in json.loads(out)["targets"] if row["asked"]} == {"topk k=5"}
    assert {name: cache.hash(name) for name in cache.names()} == before
    assert read_manifest(cache).shard["targets"]["k"] == 5
