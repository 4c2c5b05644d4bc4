"""vLLM for real: its rows are transformers' rows, whatever the targets, the cut and the order (field cases 3, 21, 22, 24 to 26)."""

import numpy as np
import pytest
from tiny_teacher import write_teacher
from vllm_process import engine, needs_vllm, score, transformers_score
from vllm_rows import assert_all_close, assert_close, documents, shared

from pipeline.contract.errors import TeacherError
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.engines.base import ScoringError

pytestmark = needs_vllm
LENGTHS = [7, 1, 24, 2, 24, 13, 1, 5]
TARGETS = [
    Targets(k=8),
    Targets(mode="threshold", c=0.02, temperatures=[1.0, 2.0]),
    Targets(mode="sampled", c=1 / 16),
]


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"), head_dim=32)


def test_all_targets_are_what_transformers_keeps(vllm_child, teacher):
    ids = documents(LENGTHS)
    ours, theirs = vllm_child.call(score, teacher, ids, TARGETS), transformers_score(teacher, ids, TARGETS)
    assert [[len(document.token_ids) for document in found] for found in ours] == [LENGTHS] * 3
    assert_all_close(ours, theirs, TARGETS)
    assert shared(ours[2], theirs[2]) > 0.99


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", True)])
def test_every_family(vllm_child, tmp_path, family, tied):
    folder = write_teacher(tmp_path, family=family, tied=tied, head_dim=32)
    ids, targets = documents([9, 24, 3]), TARGETS[:1]
    assert_all_close(vllm_child.call(score, folder, ids, targets), transformers_score(folder, ids, targets), targets)


def test_qwen3s_vocabulary(vllm_child, tmp_path):
    folder = write_teacher(tmp_path, vocab_size=151_936, tied=True, head_dim=32)
    ids, targets = documents([5, 24], vocab=151_936), TARGETS[:1]
    for one, other in zip(vllm_child.call(score, folder, ids, targets)[0], transformers_score(folder, ids, targets)[0], strict=True):
        assert_close(one, other, targets[0])
        assert max(int(document.ids.max()) for document in (one, other)) >= 1 << 17


def test_long_documents_come_in_several_steps(vllm_child, teacher):
    """16 tokens a step: a document of 24 is cut, and steps hold parts of several; chunks of 5 rows cut them again."""
    ids, sections = documents(LENGTHS), {"cache": {"tokens_per_batch": 16, "rows_per_chunk": 5}}
    assert_all_close(vllm_child.call(score, teacher, ids, TARGETS, **sections), transformers_score(teacher, ids, TARGETS), TARGETS)


def test_the_order_and_what_was_scored_before_change_nothing_beyond_rounding(vllm_child, teacher):
    ids, order = documents(LENGTHS), np.random.default_rng(1).permutation(len(LENGTHS))
    first = vllm_child.call(score, teacher, ids, TARGETS[:1])[0]
    shuffled = vllm_child.call(score, teacher, [ids[place] for place in order], TARGETS[:1])[0]
    again = vllm_child.call(score, teacher, ids, TARGETS[:1])[0]
    for place, document in zip(order, shuffled, strict=True):
        assert_close(document, first[place], TARGETS[0])
    assert_all_close([again], [first], TARGETS[:1])


def test_documents_of_one_token_alone_and_none(vllm_child, teacher):
    (found,) = vllm_child.call(score, teacher, documents([1, 1]), TARGETS[:1])
    assert [(document.tokens, len(document.ids)) for document in found] == [(0, 0), (0, 0)]
    assert vllm_child.call(score, teacher, [], TARGETS) == [[], [], []]


def test_a_document_that_is_too_long_is_named(vllm_child, teacher):
    with pytest.raises(ScoringError, match=r"document 1: has 25 tokens, documents.max_length=24"):
        vllm_child.call(score, teacher, documents([3, 25]), TARGETS[:1])
    assert len(vllm_child.call(score, teacher, documents([3, 24]), TARGETS[:1])[0]) == 2


def test_an_id_outside_the_vocabulary_is_named(vllm_child, teacher):
    with pytest.raises(ScoringError, match=r"document 0: token id 128 is outside the teacher's 128 rows"):
        vllm_child.call(score, teacher, [np.array([1, 128], dtype=np.int32)], TARGETS[:1])


def test_a_non_finite_weight_is_refused_at_the_start(vllm_child, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_teacher(tmp_path, head_dim=32)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TeacherError, match="non-finite"):
        vllm_child.call(score, folder, documents([3]), TARGETS[:1])


def test_the_interface_is_transformers(vllm_child, teacher):
    from captures import shard

    from stage1_teacher.engines.transformers_engine import TransformersEngine
    from stage1_teacher.teacher_files import TeacherFiles

    ours = vllm_child.call(interface, teacher)
    theirs = TransformersEngine(TeacherFiles(teacher), shard(teacher, teacher)).interface()
    assert ours.config == theirs.config and ours.tensors.keys() == theirs.tensors.keys()
    assert all((ours.tensors[name] == theirs.tensors[name]).all() for name in ours.tensors)


def interface(folder):
    return engine(folder).interface()


def test_a_wrong_quantity_is_refused_by_the_self_check(vllm_child, teacher):
    with pytest.raises(TeacherError, match=r"engine=vllm: its row \d+ of a test document is .* nats from transformers'"):
        vllm_child.call(shifted, teacher)


def shifted(folder):
    """In the vllm_child: an engine whose rows are off by one."""
    from stage1_teacher.engines.vllm_self_check import Expected, require_equal

    (ids,), targets = documents([12]), Targets(k=8)
    (document,) = transformers_score(folder, [ids], [targets])[0]
    for values in (document.label_logprob, document.logprobs):
        values[:] = np.roll(values, 1)
    require_equal(engine(folder).score([ids], targets)[0], Expected(ids, targets, document), "float32")
