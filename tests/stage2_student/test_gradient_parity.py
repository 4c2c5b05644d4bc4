"""A step's gradients do not know how it was carried out (field cases 11, 40, 43): micro-batches, padding, recomputed activations,
ZeRO stage, offload, processes, frozen blocks.

Compared before the optimizer: through Adam's first step a gradient that is wrong by a factor gives the same update.
"""

import math

import pytest
import torch
from gradient_worker import BATCHES, BUDGETS, CASES, EXACT, STEPS, Case, Gradients, Step, all_cases, gradient_job, gradients, open_engine

from pipeline.contract.logit_cache import LogitCache
from stage2_student.batches import collate
from stage2_student.curriculum import is_trained, phases
from stage2_student.loss import distillation_loss
from stage2_student.phase_models import first_model
from stage2_student.support import SUPPORTED

RELATIVE = 1e-5
ROUNDED = [engine for engine in SUPPORTED if engine.precision == "bfloat16"]


@pytest.fixture(scope="module")
def found(two_processes, module_root) -> dict[int, dict[str, dict[Step, Gradients]]]:
    """By number of processes, case and step: two under torchrun while this one does it alone."""
    alone = all_cases(module_root)
    return {1: alone, 2: two_processes()["gradients"]}


@pytest.fixture(scope="module")
def plain(module_root) -> dict[tuple[str, str], Gradients]:
    """By curriculum and batch: autograd of the reference loss on full logits of one right-padded batch, no DeepSpeed."""
    result = {}
    for curriculum in ("joint", "freeze"):
        chosen = gradient_job(module_root, Case(EXACT[0], False, curriculum))
        documents, phase = LogitCache.open(chosen.cache), phases(chosen.settings)[-1]
        for name, indices in BATCHES.items():
            model = first_model(chosen, phase.active_blocks)
            batch = collate(documents.padded(indices), model.config.vocab_size).to(torch.device("cpu"))
            value = distillation_loss(model(batch.input_ids).logits.flatten(0, 1), batch.labels, batch.targets)
            value.loss.backward()
            trained = {n: p.grad for n, p in model.named_parameters() if is_trained(n, phase, chosen.settings)}
            result[curriculum, name] = trained | {"sums": torch.stack([*value]).detach()}
    return result


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_those_of_the_plain_batch(found, plain, case, step, processes):
    mine, theirs = dict(found[processes][str(case)][step]), dict(plain[case.curriculum, step.batch])
    norm, sums, expected_sums = mine.pop("norm"), mine.pop("sums"), theirs.pop("sums")
    assert mine.keys() == theirs.keys() and len(mine) == (35 if case.curriculum == "joint" else 11)
    far = {name: difference(mine[name], theirs[name]) for name in mine}
    assert max(far.values()) < RELATIVE, far
    expected = math.sqrt(sum(grad.double().square().sum().item() for grad in theirs.values()))
    assert norm.item() == pytest.approx(expected, rel=RELATIVE)
    assert sums[:5].tolist() == pytest.approx(expected_sums.tolist(), rel=RELATIVE)  # field case 44: the logged loss is the step's


def test_the_batches_are_what_they_should_be(module_root):
    lengths = LogitCache.open(module_root / "caches/tiny").input_tokens
    ragged, pair = ([int(lengths[index]) for index in indices] for indices in BATCHES.values())
    assert len(set(ragged)) > 4 and sum(ragged) > BUDGETS["some"]
    assert min(pair) == 8 and max(pair) > 8  # so on two ranks one holds a single 8-token document


@pytest.mark.parametrize("engine", ROUNDED, ids=str)
def test_bfloat16_is_near_and_accumulates_in_float32(module_root, plain, engine):
    """DeepSpeed#2768: 56 micro-batches add up to what one gives; accumulated in bfloat16 the head would be 0.016 off."""
    documents = BATCHES["ragged"] * 8
    split, whole = gradients(module_root, Case(engine, False, "joint"), [(documents, 1, "varlen"), (documents, 100_000, "padded")])
    theirs = plain["joint", "ragged"]
    assert all(difference(whole[name], theirs[name]) < 0.1 for name in theirs if name != "sums")
    assert all(whole[name].dtype == torch.float32 for name in theirs if name != "sums")
    assert difference(split["lm_head.weight"], whole["lm_head.weight"]) < 0.007


@pytest.mark.parametrize("engine", [EXACT[0], *ROUNDED], ids=str)
def test_weights_are_the_float32_ones_bit_for_bit(module_root, engine):
    """Also under bfloat16, whose weights DeepSpeed would make its masters from; and what is frozen is not rounded."""
    chosen = gradient_job(module_root, Case(engine, False, "freeze"))
    given = first_model(chosen, 3).state_dict()
    _, opened = open_engine(chosen)
    weights = opened.weights()
    assert weights.keys() == given.keys() and opened.masters().keys() == {name for name in given if name.startswith("blocks.2.")}
    assert all(torch.equal(weights[name], given[name]) for name in given)
    assert opened.optimizer_is_fresh()
    assert {p.dtype for p in opened.model.parameters()} == {torch.bfloat16 if engine.precision == "bfloat16" else torch.float32}
    opened.close()
