"""A step's gradients do not know how it was carried out (field cases 11, 40, 43): micro-batches, ZeRO stage, processes.

Compared before the optimizer: through Adam's first step a gradient that is wrong by a factor gives the same update.
"""

import math
from pathlib import Path

import pytest
import torch
from gradient_worker import BATCHES, BUDGETS, ZEROS, all_settings, make_run, one_step
from runs import finish, job, start

from pipeline.contract.logit_cache import LogitCache
from stage2_student.batches import collate
from stage2_student.curriculum import is_trained, phases
from stage2_student.engine import StudentEngine
from stage2_student.loss import distillation_loss
from stage2_student.phase_models import phase_model

Gradients = dict[str, torch.Tensor]
RELATIVE = 1e-5
SETTINGS = [f"{name}, zero {zero}, {budget}" for name in BATCHES for zero in ZEROS for budget in BUDGETS]


@pytest.fixture(scope="module")
def found(module_root, tmp_path_factory) -> dict[int, dict[str, Gradients]]:
    """By number of processes: two under torchrun while this one does it alone."""
    out = tmp_path_factory.mktemp("gradients") / "two.pt"
    script = str(Path(__file__).with_name("gradient_worker.py"))
    two = start(["--standalone", "--nproc-per-node", "2", script, str(module_root), str(out)], "torch.distributed.run")
    alone = all_settings(module_root)
    finish(two)
    return {1: alone, 2: torch.load(out)}


@pytest.fixture(scope="module")
def plain(module_root) -> dict[str, Gradients]:
    """By batch: autograd of the reference loss on full logits of one right-padded batch, no DeepSpeed."""
    chosen = job(module_root, norm="post")
    documents, result = LogitCache.open(chosen.cache), {}
    for name, indices in BATCHES.items():
        model = phase_model(chosen, phases(chosen.settings)[0])
        batch = collate(documents.padded(indices), model.config.vocab_size).to(torch.device("cpu"))
        value = distillation_loss(model(batch.input_ids).logits.flatten(0, 1), batch.labels, batch.targets)
        value.loss.backward()
        result[name] = {n: p.grad for n, p in model.named_parameters() if p.requires_grad} | {"sums": torch.stack([*value]).detach()}
    return result


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_equal_those_of_the_plain_batch(found, plain, processes, setting):
    mine, theirs = dict(found[processes][setting]), dict(plain[setting.split(", zero")[0]])
    norm, sums, expected_sums = mine.pop("norm"), mine.pop("sums"), theirs.pop("sums")
    assert mine.keys() == theirs.keys() and len(mine) > 30
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


@pytest.mark.parametrize("zero", [1, 2])
def test_bfloat16_gradients_are_near(module_root, plain, zero):
    mine = one_step(module_root, BATCHES["ragged"], 100, zero, precision="bfloat16")
    theirs = plain["ragged"]
    assert all(difference(mine[name], theirs[name]) < 0.1 for name in theirs if name != "sums")
    assert all(mine[name].dtype == torch.float32 for name in theirs if name != "sums")


@pytest.mark.parametrize("zero", [1, 2])
def test_bfloat16_accumulates_in_float32(module_root, zero):
    """DeepSpeed#2768: 56 micro-batches add up to what one gives; accumulated in bfloat16 the head would be 0.016 off."""
    split, whole = (one_step(module_root, BATCHES["ragged"] * 8, budget, zero, precision="bfloat16") for budget in (1, 100_000))
    assert difference(split["lm_head.weight"], whole["lm_head.weight"]) < 0.007


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_masters_are_the_float32_weights_bit_for_bit(module_root, zero):
    """Also under bfloat16, whose weights DeepSpeed would make them from."""
    chosen = job(module_root, zero=zero, precision="bfloat16" if zero else "float32")
    run, phase = make_run(chosen), phases(chosen.settings)[0]
    model = phase_model(chosen, phase)
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = StudentEngine(model, chosen.settings, run.processes, lambda name: is_trained(name, phase, chosen.settings))
    masters = engine.masters()
    assert masters.keys() == given.keys() - {"embed_tokens.weight"}
    assert all(torch.equal(masters[name], given[name]) for name in masters)
    assert engine.optimizer_is_fresh()
    assert next(engine.model.parameters()).dtype == (torch.bfloat16 if zero else torch.float32)
    engine.close()
