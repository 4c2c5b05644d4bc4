"""vLLM for real: its rows are transformers' rows, whatever the targets, the cut and the order (field cases 3, 21, 22, 24 to 26)."""

import numpy as np
import pytest
from tiny_teacher import write_teacher
from vllm_process import Child, engine, needs_vllm, score, transformers_score

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
SWAP = 2e-4
"""Entries closer than this may change places."""


@pytest.fixture(scope="module")
def child():
    made = Child()
    yield made
    made.close()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"), head_dim=32)


def documents(lengths=LENGTHS, vocab=128, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.int32) for length in lengths]


def assert_close(found, wanted, targets: Targets) -> None:
    """The same rows: entries may differ where the last of a row is within SWAP of the next, or of the threshold."""
    np.testing.assert_array_equal(found.token_ids, wanted.token_ids)
    for name in ("label_logprob", "entropy"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-3)
    for t in range(wanted.tokens):
        ours, theirs = (dict(zip(*document.row(t), strict=True)) for document in (found, wanted))
        for token in ours.keys() & theirs.keys():
            assert abs(ours[token] - theirs[token]) < 1e-3
        if targets.mode == "sampled":
            continue
        edge = min(theirs.values(), default=np.log(targets.c))
        assert all(abs({**ours, **theirs}[token] - edge) < SWAP for token in ours.keys() ^ theirs.keys())
        if ours.keys() == theirs.keys():
            assert found.tail_logprob[t] == pytest.approx(wanted.tail_logprob[t], abs=1e-3)
            for tau, tails in wanted.other_tails.items():
                assert found.other_tails[tau][t] == pytest.approx(tails[t], abs=1e-3)


def test_all_targets_are_what_transformers_keeps(child, teacher):
    ids = documents()
    ours, theirs = child.call(score, teacher, ids, TARGETS), transformers_score(teacher, ids, TARGETS)
    for targets, found, wanted in zip(TARGETS, ours, theirs, strict=True):
        assert [len(document.token_ids) for document in found] == LENGTHS
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other, targets)
    sampled, wanted = found, wanted
    shared = sum(len(np.intersect1d(a.row(t)[0], b.row(t)[0])) for a, b in zip(sampled, wanted, strict=True) for t in range(a.tokens))
    assert shared > 0.99 * sum(len(document.ids) for document in wanted)


@pytest.mark.parametrize(("family", "tied"), [("qwen3", True), ("qwen2", False), ("llama", True)])
def test_every_family(child, tmp_path, family, tied):
    folder = write_teacher(tmp_path, family=family, tied=tied, head_dim=32)
    ids, targets = documents([9, 24, 3]), TARGETS[:1]
    for one, other in zip(child.call(score, folder, ids, targets)[0], transformers_score(folder, ids, targets)[0], strict=True):
        assert_close(one, other, targets[0])


def test_qwen3s_vocabulary(child, tmp_path):
    folder = write_teacher(tmp_path, vocab_size=151_936, tied=True, head_dim=32)
    ids, targets = documents([5, 24], vocab=151_936), TARGETS[:1]
    for one, other in zip(child.call(score, folder, ids, targets)[0], transformers_score(folder, ids, targets)[0], strict=True):
        assert_close(one, other, targets[0])
        assert max(int(document.ids.max()) for document in (one, other)) >= 1 << 17


def test_long_documents_come_in_several_steps(child, teacher):
    """16 tokens a step: a document of 24 is cut, and steps hold parts of several; chunks of 5 rows cut them again."""
    ids, sections = documents(), {"cache": {"tokens_per_batch": 16, "rows_per_chunk": 5}}
    found = child.call(score, teacher, ids, TARGETS, **sections)
    for targets, ours, theirs in zip(TARGETS, found, transformers_score(teacher, ids, TARGETS), strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert_close(one, other, targets)


def test_the_order_and_what_was_scored_before_change_nothing_beyond_rounding(child, teacher):
    ids, order = documents(), np.random.default_rng(1).permutation(len(LENGTHS))
    first = child.call(score, teacher, ids, TARGETS[:1])[0]
    shuffled = child.call(score, teacher, [ids[place] for place in order], TARGETS[:1])[0]
    again = child.call(score, teacher, ids, TARGETS[:1])[0]
    for place, document in zip(order, shuffled, strict=True):
        assert_close(document, first[place], TARGETS[0])
    for one, other in zip(first, again, strict=True):
        assert_close(one, other, TARGETS[0])


def test_documents_of_one_token_alone_and_none(child, teacher):
    (found,) = child.call(score, teacher, documents([1, 1]), TARGETS[:1])
    assert [(document.tokens, len(document.ids)) for document in found] == [(0, 0), (0, 0)]
    assert child.call(score, teacher, [], TARGETS) == [[], [], []]


def test_a_document_that_is_too_long_is_named(child, teacher):
    with pytest.raises(ScoringError, match=r"document 1: has 25 tokens, documents.max_length=24"):
        child.call(score, teacher, documents([3, 25]), TARGETS[:1])
    assert len(child.call(score, teacher, documents([3, 24]), TARGETS[:1])[0]) == 2


def test_an_id_outside_the_vocabulary_is_named(child, teacher):
    with pytest.raises(ScoringError, match=r"document 0: token id 128 is outside the teacher's 128 rows"):
        child.call(score, teacher, [np.array([1, 128], dtype=np.int32)], TARGETS[:1])


def test_a_non_finite_weight_is_refused_at_the_start(child, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = write_teacher(tmp_path, head_dim=32)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("nan")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TeacherError, match="non-finite"):
        child.call(score, folder, documents([3]), TARGETS[:1])


def test_the_interface_is_transformers(child, teacher):
    from captures import shard

    from stage1_teacher.engines.transformers_engine import TransformersEngine
    from stage1_teacher.teacher_files import TeacherFiles

    ours = child.call(interface, teacher)
    theirs = TransformersEngine(TeacherFiles(teacher), shard(teacher, teacher)).interface()
    assert ours.config == theirs.config and ours.tensors.keys() == theirs.tensors.keys()
    assert all((ours.tensors[name] == theirs.tensors[name]).all() for name in ours.tensors)


def interface(folder):
    return engine(folder).interface()


def test_a_wrong_quantity_is_refused_by_the_self_check(child, teacher):
    with pytest.raises(TeacherError, match=r"engine=vllm: its row \d+ of a test document is .* nats from transformers'"):
        child.call(shifted, teacher)


def shifted(folder):
    """In the child: an engine whose rows are off by one."""
    from stage1_teacher.engines.vllm_self_check import Expected, require_equal

    made = engine(folder)
    ids = documents([12])[0]
    document = transformers_score(folder, [ids], [Targets(k=8)])[0][0]
    for values in (document.label_logprob, document.logprobs):
        values[:] = np.roll(values, 1)
    require_equal(made, Expected(ids, document), "float32")
