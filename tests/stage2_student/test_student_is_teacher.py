"""A pre-norm student that holds the teacher's own layers is the teacher: nothing between cache and loss is shifted (field case 18)."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from runs import job, train_arguments
from test_placement import full_depth_student
from transformers import AutoModelForCausalLM

from pipeline.contract.logit_cache import LogitCache, PaddedDocuments
from stage2_student.batches import collate
from stage2_student.engine import Processes
from stage2_student.evaluate import Evaluation, evaluate, teacher_ce


@pytest.fixture(scope="module")
def student(tiny_cache):
    teacher = AutoModelForCausalLM.from_pretrained(tiny_cache.parents[2] / "teacher", dtype=torch.float32).eval()
    return full_depth_student(teacher, layers_per_block=1)


def evaluated(student, root, documents=None, **changes) -> Evaluation:
    chosen = job(root, **changes)
    return evaluate(student, LogitCache.open(chosen.cache, "validation"), chosen.settings, Processes(), documents)


@pytest.mark.parametrize("tail", ["bucket", "renormalize"])
def test_its_kl_is_zero_and_its_ce_the_teachers(student, root, tail):
    found = evaluated(student, root, tail=tail)
    expected = teacher_ce(LogitCache.open(root / "caches/tiny", "validation"))
    assert abs(found.kl) < 1e-4
    assert found.ce == pytest.approx(expected, abs=1e-4)
    assert found.ppl == pytest.approx(math.exp(expected), rel=1e-3)


def test_a_shift_by_one_would_show(student, root):
    """The same, with targets one position early: what the test above must refuse."""
    validation = LogitCache.open(root / "caches/tiny", "validation")
    whole = validation.padded(range(len(validation)))
    early = replace(
        whole, token_ids=whole.token_ids[:, 1:], lengths=np.maximum(whole.lengths - 1, 1), **_cut_to(whole.token_ids.shape[1] - 1, whole)
    )
    batch = collate(early, student.config.vocab_size).to(torch.device("cpu"))
    from stage2_student.loss import distillation_loss

    with torch.no_grad():
        found = distillation_loss(student(batch.input_ids).logits.flatten(0, 1), batch.labels, batch.targets)
    assert found.kl > 0.1


def _cut_to(time: int, whole: PaddedDocuments) -> dict:
    """Rows as they are, so that row t's targets now stand beside token t+1."""
    return {name: getattr(whole, name)[:, :time] for name in ("counts", "ids", "weights", "tail_mass", "label_logprob")}


def test_evaluation_does_not_depend_on_the_micro_batches(student, root):
    found = [evaluated(student, root, micro_batch_tokens=budget) for budget in (1, 60, 10_000)]
    for other in found[1:]:
        assert other.tokens == found[0].tokens == 87
        assert (other.ce, other.kl, other.kd) == pytest.approx((found[0].ce, found[0].kl, found[0].kd), rel=1e-6, abs=1e-7)


def test_it_is_a_mean_over_tokens_not_over_documents(student, root):
    """Field case 44."""
    single = [evaluated(student, root, documents=[index]) for index in range(5)]
    whole = evaluated(student, root)
    assert len({one.tokens for one in single}) > 2 and sum(one.tokens for one in single) == whole.tokens
    assert whole.ce == pytest.approx(sum(one.ce * one.tokens for one in single) / whole.tokens, rel=1e-6)
    assert whole.ce != pytest.approx(sum(one.ce for one in single) / 5, rel=1e-4)


def test_evaluation_leaves_the_model_as_it_was(student, root):
    for training in (True, False):
        student.train(training)
        evaluated(student, root)
        assert student.training is training
        assert all(parameter.grad is None for parameter in student.parameters())


def test_the_command_evaluates_what_training_recorded(root, pipeline):
    root = root.absolute()
    code, out, _ = pipeline(*train_arguments(root, "run", "--curriculum", "grow", steps=2))
    trained = json.loads(out)
    assert code == 0
    for phase in range(3):
        code, out, _ = pipeline("evaluate", "run", "--root", str(root), "--phase", str(phase), "--json")
        found = json.loads(out)
        assert code == 0 and found["val_ce"] == pytest.approx(trained["phases"][phase]["val_ce"], rel=1e-6)
        assert found["teacher_ce"] == trained["teacher_ce"] and found["phase"] == phase
    shutil.rmtree(root / "runs/run/phases/phase-2")
    code, _, err = pipeline("evaluate", "run", "--root", str(root), "--phase", "2")
    assert code == 2 and "phase 2 is not finished" in err
