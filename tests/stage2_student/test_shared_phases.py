"""All runs of the paper on a tiny teacher: budgets equal to the plan, phases that runs have in common trained once, and only those."""

from typing import Any

import pytest
from runs import equal_states, job, metrics, phase_state
from watched import train_watched

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.find import load_experiment
from pipeline.contract.manifest.overrides import merge
from stage2_student.curriculum import phases
from stage2_student.job import StudentJob
from stage2_student.shared_phases import adopt, donors, phase_keys, turns
from stage2_student.train import train
from stage2_student.training_plan import training_plan

# 2 steps of 4 documents a phase, passes of 8 of 24 documents: the miniature's own numbers
EXPERIMENT = load_experiment("paper-controls-small")
BUDGETS = ("tokens_total", "tokens_unique", "active_layer_tokens", "optimizer_steps")
QUIET = {"eval_interval": 100, "checkpoint_interval": 100, "probe_documents": 0}


def experiment_jobs(root, norm: str) -> dict[str, StudentJob]:
    """The runs of one placement by label, in their order."""
    named = zip(EXPERIMENT.labels, EXPERIMENT.layers, strict=True)
    layers = {label or f"{layer['norm']}-{layer['curriculum']}": layer for label, layer in named if layer["norm"] == norm}
    return {label: job(root, **merge(layer, QUIET, {"name": label})) for label, layer in layers.items()}


@pytest.fixture(scope="module")
def finished(module_root):
    """Every post-norm run, trained as `pipeline run` does."""
    jobs = experiment_jobs(module_root, "post")
    found = dict(zip(jobs, donors(list(jobs.values())), strict=True))
    results = {}
    for label, chosen in jobs.items():
        adopt(chosen, found[label])
        results[label] = train(chosen)
    return jobs, results


def test_budgets_are_exact(finished):
    """Against a walk over the documents of every step, and the plan."""
    jobs, results = finished
    for label, chosen in jobs.items():
        tokens = LogitCache.open(chosen.cache).input_tokens - 1
        drawn = [steps_documents(chosen, phase) for phase in phases(chosen.settings)]
        layers = chosen.settings.phase_blocks or ([3] if chosen.settings.curriculum == "joint" else [1, 2, 3])
        by_phase = [sum(int(tokens[d]) for d in documents) for documents in drawn]
        expected = {
            "tokens_total": sum(by_phase),
            "tokens_unique": sum(int(tokens[d]) for d in {d for documents in drawn for d in documents}),
            "active_layer_tokens": sum(n * count for n, count in zip(layers, by_phase, strict=True)),
            "optimizer_steps": 2 * len(layers),
        }
        assert {key: results[label][key] for key in BUDGETS} == expected, label
        assert {key: training_plan(chosen)[key] for key in BUDGETS} == expected, label
        assert [record["tokens"] for record in metrics(chosen.folder, "train")] == [
            sum(int(tokens[d]) for d in documents[step : step + 4]) for documents in drawn for step in (0, 4)
        ]


def steps_documents(chosen: StudentJob, phase: Any) -> list[int]:
    """Documents of a phase by the words of the design, for passes of one shard's order: nothing of `curriculum` but its numbers."""
    from pipeline.contract.data_order import DocumentOrder

    s, documents = chosen.settings, LogitCache.open(chosen.cache)
    sizes = [shard.documents for shard in documents.record.shards]
    a_pass = s.train_documents
    first = 0 if s.data == "rewind" else phase.index * 8
    if s.data == "fresh":
        assert a_pass == 8
        stream = DocumentOrder(sizes, 8, s.seed, "fresh").at(8 * phase.index, 8).tolist()
        assert sorted(stream) == list(range(8 * phase.index, 8 * phase.index + 8))
        return stream
    one = DocumentOrder(sizes, a_pass, s.seed, "fixed").at(0, a_pass).tolist()
    return [one[place % a_pass] for place in range(first, first + 8)]


SHARED = {
    "post-freeze": ["post-grow"],
    "post-freeze-keep": ["post-grow"],
    "post-joint-longer": ["post-joint"],
    "post-grow-rewind": ["post-grow"] * 3,
    "post-grow-uneven-rewind": ["post-grow-uneven"],
    "post-joint-restart": ["post-joint"],
    "post-single-block": ["post-grow"],
    "post-single-block-restart": ["post-grow"],
}


def test_shared_phases_are_trained_once_and_said(finished):
    jobs, results = finished
    for label, result in results.items():
        wanted = SHARED.get(label, [])
        assert result["shared_phases"] == wanted == (jobs[label].record.read("shared_phases") or []), label
        assert result["steps_executed"] == result["optimizer_steps"] - 2 * len(wanted) and result["resumed_from"] == 2 * len(wanted)
        for index, donor in enumerate(wanted):
            assert equal_states(phase_state(jobs[label].folder, index), phase_state(jobs[donor].folder, index))
            mine, theirs = ([m for m in metrics(jobs[run].folder) if m["phase"] == index] for run in (label, donor))
            assert mine == theirs


@pytest.mark.parametrize("label", ["post-freeze-keep", "post-joint-longer", "post-grow-rewind"])
def test_a_run_that_shares_is_bit_equal_to_one_that_does_not(finished, root, label):
    alone = experiment_jobs(root, "post")[label]
    result = train(alone)
    jobs, results = finished
    assert result["shared_phases"] == [] and {k: result[k] for k in BUDGETS} == {k: results[label][k] for k in BUDGETS}
    assert result["val_ce"] == results[label]["val_ce"]
    for phase in range(3):
        assert equal_states(phase_state(alone.folder, phase), phase_state(jobs[label].folder, phase))


def test_rewind_differs_where_a_phase_is_no_whole_pass(finished):
    _, results = finished
    assert results["post-grow-rewind"]["val_ce"] == results["post-grow"]["val_ce"]
    assert results["post-grow-uneven-rewind"]["val_ce"] != results["post-grow-uneven"]["val_ce"]


def test_longer_is_one_run_evaluated_at_each_end(finished):
    _, results = finished
    longer = results["post-joint-longer"]
    assert [phase["active_layers"] for phase in longer["phases"]] == [3, 3, 3]
    assert longer["tokens_unique"] == longer["tokens_total"] > results["post-joint"]["tokens_total"]
    assert longer["phases"][0]["val_ce"] == results["post-joint"]["val_ce"] != longer["phases"][1]["val_ce"]


def test_a_restart_has_a_new_optimizer_and_no_append(root, monkeypatch):
    chosen = job(root, curriculum="grow", phase_blocks=[1, 1, 2], name="restart")
    _, starts = train_watched(chosen, monkeypatch)
    assert [start.fresh for start in starts] == [[True, False, False, False]] * 3
    assert starts[0].rates == starts[1].rates
    assert equal_states(starts[1].weights, phase_state(chosen.folder, 0))
    assert [(m["phase"], m["block"]) for m in metrics(chosen.folder, "event")] == [(2, 1)]


def test_ce_alone_takes_nothing_from_the_teacher(finished):
    jobs, _ = finished
    for record in metrics(jobs["post-joint-ce"].folder, "train"):
        assert record["train/loss"] == pytest.approx(record["train/ce"], rel=1e-6)


# each is another run from the phase named on; None: it is the same run
CHANGES: dict[str, tuple[dict[str, Any], int | None]] = {
    "learning_rate": ({"learning_rate": 1e-3}, 0),
    "seed": ({"seed": 7}, 0),
    "alpha": ({"alpha": 0.5}, 0),
    "precision": ({"precision": "bfloat16"}, 0),
    "steps": ({"steps": 3}, 0),
    "range": ({"train_documents": 23}, 0),
    "reshuffle": ({"order": "reshuffle"}, 1),  # 16 documents of 24, then a pass ends within phase 1
    "rewind": ({"data": "rewind"}, 1),
    "freeze": ({"curriculum": "freeze"}, 1),
    "restart": ({"phase_blocks": [1, 1, 2]}, 1),
    "one phase": ({"phase_blocks": [1]}, None),
    "how it is carried out": ({"micro_batch_tokens": 50, "checkpoint_interval": 1, "gradient_checkpointing": True}, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_keys_differ_from_the_phase_on_in_which_runs_differ(root, change):
    changes, expected = CHANGES[change]
    ours, theirs = (phase_keys(job(root, **merge({"curriculum": "grow"}, more))) for more in ({}, changes))
    first = next((index for index, (a, b) in enumerate(zip(ours, theirs)) if a != b), None)
    assert first == expected
    assert expected is None or not set(ours[expected:]) & set(theirs[expected:])


def test_turns_put_a_run_after_those_it_takes_from(root):
    jobs = list(experiment_jobs(root, "post").values())
    first, second = turns(jobs)
    assert [chosen.run for chosen in second] == [chosen.run for chosen in jobs if chosen.run in SHARED]
    assert [chosen.run for chosen in first] == [chosen.run for chosen in jobs if chosen.run not in SHARED]


def test_a_run_that_has_begun_keeps_what_it_has(finished, root):
    """And a donor that is not there yet is waited for by nobody."""
    jobs, _ = finished
    mine = experiment_jobs(root, "post")["post-freeze"]
    adopt(mine, [experiment_jobs(root, "post")["post-grow"]])
    assert not mine.folder.exists()
    (mine.folder / "checkpoints").mkdir(parents=True)
    adopt(mine, [jobs["post-grow"]])
    assert mine.record.read("shared_phases") is None and not mine.record.phases.exists()
