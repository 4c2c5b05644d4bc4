"""Which documents a run draws, and the budgets it reports, against a walk over the stream written here."""

from typing import Any

import pytest
from runs import job, metrics, settings

from pipeline.contract.data_order import DocumentOrder
from pipeline.contract.errors import ManifestError, RunError
from pipeline.contract.logit_cache import LogitCache
from stage2_student.curriculum import document_order, training_range
from stage2_student.train import train
from stage2_student.training_plan import training_plan

GROW: dict[str, Any] = {"curriculum": "grow"}
CASES: dict[str, dict[str, Any]] = {
    "joint": {"curriculum": "joint", "steps": 7},
    "continue": GROW,
    "rewind": GROW | {"data": "rewind"},
    "fresh": GROW | {"data": "fresh", "steps": 2},
    "reshuffle": GROW | {"order": "reshuffle", "steps": 3},
    "freeze, a pass and more": {"curriculum": "freeze", "steps": 8, "data": "rewind", "order": "reshuffle"},
    "odd batch": GROW | {"global_batch_size": 5},
}


def walk(chosen: Any) -> list[list[list[int]]]:
    """[phase][step][document]: passes laid end to end, cut into steps."""
    s, documents = chosen.settings, LogitCache.open(chosen.cache)
    order = DocumentOrder([shard.documents for shard in documents.record.shards], chosen.documents, s.seed, s.order)
    stream = [document for number in range(9) for document in order.at(number * chosen.documents, chosen.documents)]
    count, result = 1 if s.curriculum == "joint" else 3, []
    for phase in range(count):
        first = 0 if s.data == "rewind" else phase * s.steps * s.global_batch_size
        places = [first + step * s.global_batch_size for step in range(s.steps)]
        result.append([stream[place : place + s.global_batch_size] for place in places])
    return result


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def case(request, module_root):
    chosen = job(module_root, **CASES[request.param], name=request.param.replace(" ", "-").replace(",", ""))
    return chosen, train(chosen), walk(chosen)


def test_every_step_draws_its_documents(case):
    chosen, _, phases = case
    tokens = LogitCache.open(chosen.cache).input_tokens - 1
    recorded = [record["tokens"] for record in metrics(chosen.folder, "train")]
    assert recorded == [sum(int(tokens[document]) for document in step) for phase in phases for step in phase]


def test_budgets_are_what_was_drawn(case):
    chosen, result, phases = case
    tokens = LogitCache.open(chosen.cache).input_tokens - 1
    layers = [3] if chosen.settings.curriculum == "joint" else [1, 2, 3]
    by_phase = [sum(int(tokens[document]) for step in phase for document in step) for phase in phases]
    expected = {
        "tokens_total": sum(by_phase),
        "tokens_unique": sum(int(tokens[document]) for document in {d for phase in phases for step in phase for d in step}),
        "active_layer_tokens": sum(count * drawn for count, drawn in zip(layers, by_phase, strict=True)),
        "optimizer_steps": len(phases) * chosen.settings.steps,
    }
    assert {key: result[key] for key in expected} == expected
    assert result["steps_executed"] == expected["optimizer_steps"]
    assert [phase["active_layers"] for phase in result["phases"]] == layers
    plan = training_plan(chosen)
    assert {key: plan[key] for key in expected} == expected


def phase_tokens(chosen: Any, phase: int) -> list[int]:
    return [record["tokens"] for record in metrics(chosen.folder, "train") if record["phase"] == phase]


def test_rewind_starts_each_phase_at_document_0_and_continue_does_not(root):
    rewound, continued = (job(root, **GROW, data=data, name=data) for data in ("rewind", "continue"))
    for chosen in (rewound, continued):
        train(chosen)
    assert phase_tokens(rewound, 0) == phase_tokens(rewound, 1) == phase_tokens(rewound, 2) == phase_tokens(continued, 0)
    assert phase_tokens(continued, 1) != phase_tokens(continued, 0)


def test_fresh_never_repeats_and_is_refused_when_documents_are_too_few(root):
    enough = train(job(root, **GROW, data="fresh", steps=2, name="enough"))
    assert enough["tokens_unique"] == enough["tokens_total"]
    too_many = job(root, **GROW, data="fresh", steps=3, name="too-many")
    for refuse in (train, training_plan):
        with pytest.raises(RunError, match=r"data=fresh: 36 documents are needed and .* holds 24; .*documents.limit=36") as error:
            refuse(too_many)
        assert "\n" not in str(error.value)


def test_a_shorter_training_range_draws_only_from_it(root):
    from dataclasses import replace

    chosen = replace(job(root, steps=9), documents=7)
    result = train(chosen)
    tokens = LogitCache.open(chosen.cache).input_tokens[:7] - 1
    assert result["tokens_unique"] == int(tokens.sum()) < result["tokens_total"]


def test_a_run_of_short_passes_does_not_change_when_its_shard_is_extended():
    grown = settings(curriculum="grow", train_documents=7)
    assert [training_range(grown, documents) for documents in (5, 7, 24, 1000)] == [5, 7, 7, 7]
    fresh = settings(curriculum="grow", train_documents=16, data="fresh")  # draws 48
    assert [training_range(fresh, documents) for documents in (20, 48, 1000)] == [20, 48, 48]
    assert training_range(settings(), 24) == 24


def test_a_fresh_stream_never_leaves_its_range():
    """A limit below what the cache holds cuts the last pass."""
    order = document_order(settings(data="fresh", train_documents=8), [5, 5, 5, 9], 20)
    assert sorted(order.at(0, 20).tolist()) == list(range(20))


@pytest.mark.parametrize(
    ("curriculum", "depths", "rule"),
    [
        ("joint", [1, 2], "depths that are equal"),
        ("grow", [1, 3], "each 0 or 1 more"),
        ("grow", [2, 1], "each 0 or 1 more"),
        ("freeze", [1, 1], "each 1 more"),
        ("grow", [3, 4], "at most model.blocks=3"),
        ("joint", [], "at least 1 item"),
    ],
)
def test_depths_that_no_curriculum_has_are_refused(curriculum, depths, rule):
    with pytest.raises(ManifestError, match=rf"phase_blocks=\[.*{rule}") as error:
        settings(curriculum=curriculum, phase_blocks=depths)
    assert "\n" not in str(error.value)
