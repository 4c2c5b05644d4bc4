"""The engine's rows are a plain forward's, whatever the family, the batch or the chunk (field cases 8, 10, 15, 17, 18, 35)."""

import pickle

import numpy as np
import pytest
import torch
from captures import reference, shard
from reference_rows import keep_sampled, rows_of
from safetensors.torch import load_file, save_file
from tiny_teacher import QWEN3_SEPARATOR, QWEN3_VOCAB, write_teacher
from transformers import AutoModelForCausalLM

from pipeline.contract.errors import TeacherError
from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.engines.base import ScoringError
from stage1_teacher.engines.checkpoint import INDEX, read_interface, require_family
from stage1_teacher.engines.open_engine import open_engine
from stage1_teacher.engines.transformers_engine import TransformersEngine, batches_by_length
from stage1_teacher.teacher_files import TeacherFiles

FAMILIES = {"qwen3": {}, "qwen3-tied": {"tied": True}, "qwen2": {}, "llama": {}, "llama-tied": {"tied": True}}
LENGTHS = [7, 1, 24, 2, 24, 13, 1, 5]
MODES = {"topk": {"k": 8}, "threshold": {"mode": "threshold", "c": 0.02}, "sampled": {"mode": "sampled", "c": "1/16"}}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    made = {}

    def teacher(name):
        if name not in made:
            made[name] = write_teacher(tmp_path_factory.mktemp(name), family=name.split("-")[0], **FAMILIES[name])
        return made[name]

    return teacher


def engine(folder, **sections):
    return TransformersEngine(TeacherFiles(folder), shard(folder, folder, **sections))


def documents(lengths=LENGTHS, vocab=128, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.int32) for length in lengths]


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_are_a_plain_forwards(teachers, name):
    ids = documents()
    scored = engine(teachers(name)).score(ids)
    for tokens, document, logprobs in zip(ids, scored, reference(teachers(name), ids), strict=True):
        np.testing.assert_array_equal(document.token_ids, tokens)
        assert document.counts.tolist() == [8] * (len(tokens) - 1)
        best = np.argsort(-logprobs, axis=1)[:, :8]
        np.testing.assert_array_equal(document.ids.reshape(-1, 8), best)
        np.testing.assert_allclose(document.logprobs.reshape(-1, 8), np.take_along_axis(logprobs, best, 1), atol=1e-4)
        np.testing.assert_allclose(document.label_logprob, logprobs[np.arange(len(tokens) - 1), tokens[1:]], atol=1e-4)
        rest = logprobs.copy()
        np.put_along_axis(rest, best, -np.inf, 1)
        np.testing.assert_allclose(document.tail_logprob, np.logaddexp.reduce(rest, axis=1), atol=1e-4)
        np.testing.assert_allclose(document.entropy, -(np.exp(logprobs) * logprobs).sum(1), atol=1e-4)
        assert document.drawn is None and document.other_tails == {} and document.tail_square is None


def test_tails_at_other_temperatures_are_over_the_whole_vocabulary(teachers):
    """Never of logprobs that were cut off first (field case 19)."""
    ids = documents()
    scored = engine(teachers("qwen3"), targets={"temperatures": [1.0, 4.0, 0.5]}).score(ids)
    for document, logprobs in zip(scored, reference(teachers("qwen3"), ids), strict=True):
        assert list(document.other_tails) == [0.5, 4.0]
        for tau, tails in document.other_tails.items():
            rest = logprobs / tau - np.logaddexp.reduce(logprobs / tau, axis=1, keepdims=True)
            np.put_along_axis(rest, document.ids.reshape(-1, 8).astype(np.int64), -np.inf, 1)
            np.testing.assert_allclose(tails, np.logaddexp.reduce(rest, axis=1), atol=2e-4)


def test_a_threshold_keeps_what_is_above_it(teachers):
    ids = documents()
    scored = engine(teachers("qwen3"), targets={"mode": "threshold", "c": 0.02, "k": 8}).score(ids)
    for document, logprobs in zip(scored, reference(teachers("qwen3"), ids), strict=True):
        assert document.counts.tolist() == (np.exp(logprobs) >= 0.02).sum(1).clip(max=8).tolist()
        for t, kept in enumerate(rows_of(document, document.ids)):
            assert kept.tolist() == np.argsort(-logprobs[t])[: len(kept)].tolist()


def test_a_sample_is_drawn_from_a_plain_forwards_rows_by_the_documents_own_draws(teachers):
    ids = documents()
    scored = engine(teachers("qwen3"), targets={"mode": "sampled", "c": "1/16"}).score(ids)
    for tokens, document, logprobs in zip(ids, scored, reference(teachers("qwen3"), ids), strict=True):
        assert len(document.drawn) == len(document.tail_square) == len(document.entropy) == document.tokens
        for t, kept in enumerate(rows_of(document, document.ids)):
            certain, drawn = keep_sampled(np.exp(logprobs[t]), 1 / 16, int(row_draws(tokens)[t]))
            assert kept.tolist() == [*certain.tolist(), *drawn.tolist()]
            assert document.drawn[t] == len(drawn)
        np.testing.assert_allclose(np.exp(document.tail_logprob), 1 - certain_mass(document), atol=1e-5)


def certain_mass(document) -> np.ndarray:
    parts = zip(rows_of(document, document.logprobs), document.drawn)
    return np.array([np.exp(logprobs[: len(logprobs) - int(drawn)].astype(float)).sum() for logprobs, drawn in parts])


def test_several_targets_of_one_pass_are_what_each_gives_alone(teachers):
    ids, scorer = documents(), engine(teachers("qwen3"))
    wanted = [Targets.model_validate({"k": 8} | targets) for targets in MODES.values()]
    for targets, together in zip(wanted, scorer.score_many(ids, wanted), strict=True):
        for one, other in zip(scorer.score(ids, targets), together, strict=True):
            for name in ("token_ids", "counts", "ids", "logprobs", "tail_logprob", "label_logprob", "entropy"):
                np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_a_group_of_devices_is_refused(teachers):
    group = shard(teachers("qwen3"), teachers("qwen3"), cache={"tensor_parallel": 2})
    with pytest.raises(TeacherError, match=r"^cache.tensor_parallel=2: engine=transformers runs on one device; use 1, or --engine vllm$"):
        open_engine(TeacherFiles(teachers("qwen3")), group)


def test_a_row_is_not_the_distribution_over_its_own_token(teachers):
    (ids,) = documents([24])
    (document,) = engine(teachers("qwen3")).score([ids])
    (logprobs,) = reference(teachers("qwen3"), [ids])
    rows = np.arange(len(ids) - 2)
    assert np.abs(document.label_logprob[:-1] - logprobs[rows + 1, ids[2:]]).min() > 1e-3


def test_qwen3_ids_need_18_bits(tmp_path):
    folder = write_teacher(tmp_path, vocab_size=QWEN3_VOCAB)
    ids = [np.array([QWEN3_VOCAB - 1, 140_000, 5, QWEN3_SEPARATOR], dtype=np.int32)]
    scorer = engine(folder)
    assert scorer.vocab_size == QWEN3_VOCAB
    (document,) = scorer.score(ids)
    (logprobs,) = reference(folder, ids)
    np.testing.assert_array_equal(document.ids.reshape(-1, 8), np.argsort(-logprobs, axis=1)[:, :8])
    assert (document.ids > 2**17).any()
    assert document.label_logprob[-1] == pytest.approx(logprobs[-1, QWEN3_SEPARATOR], abs=1e-4)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", [{"tokens_per_batch": 1}, {"tokens_per_batch": 48}, {"rows_per_chunk": 1}, {"rows_per_chunk": 7}])
def test_batches_and_chunks_do_not_change_the_rows(teachers, cut, mode):
    ids = documents()
    whole = engine(teachers("qwen3"), cache={"tokens_per_batch": 10_000, "rows_per_chunk": 10_000}, targets=MODES[mode]).score(ids)
    for tokens, one, other in zip(ids, whole, engine(teachers("qwen3"), cache=cut, targets=MODES[mode]).score(ids), strict=True):
        np.testing.assert_array_equal(other.token_ids, tokens)
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_array_equal(one.ids, other.ids)
        for name in ("logprobs", "tail_logprob", "label_logprob", "entropy"):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_results_are_in_the_order_given_and_do_not_depend_on_it(teachers, mode):
    ids = documents([3, 20, 1, 9, 20, 2])
    scorer = engine(teachers("qwen3"), targets=MODES[mode])
    forward, backward = scorer.score(ids), scorer.score(ids[::-1])[::-1]
    for tokens, one, other in zip(ids, forward, backward, strict=True):
        np.testing.assert_array_equal(one.token_ids, tokens)
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.label_logprob, other.label_logprob, atol=1e-5)


@pytest.mark.parametrize("targets", [*MODES.values(), {"temperatures": [2.0]}])
def test_documents_of_one_token_alone_have_no_rows(teachers, targets):
    for document in engine(teachers("qwen3"), targets=targets).score(documents([1, 1])):
        assert document.tokens == len(document.counts) == len(document.ids) == len(document.label_logprob) == len(document.entropy) == 0
        assert (document.drawn is None) == (targets.get("mode") != "sampled")
        assert [len(tails) for tails in document.other_tails.values()] == [0] * len(targets.get("temperatures", []))


def test_no_documents_no_results(teachers):
    assert engine(teachers("qwen3")).score([]) == []


def test_batches_are_within_the_budget_and_hold_every_document_once():
    lengths = [int(n) for n in np.random.default_rng(0).integers(1, 300, 500)]
    batches = list(batches_by_length(lengths, 1000))
    assert sorted(i for batch in batches for i in batch) == list(range(500))
    assert all(len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= 1000 for batch in batches)
    assert list(batches_by_length([5000, 3], 1000)) == [[1], [0]]


def test_torch_has_its_threads_back(teachers):
    before = torch.get_num_threads()
    engine(teachers("qwen3"), cache={"threads": before + 1}).score(documents())
    assert torch.get_num_threads() == before


def test_a_bfloat16_body_has_a_float32_head(teachers):
    scorer = engine(teachers("qwen3"), teacher={"dtype": "bfloat16"})
    (ids,) = documents([24])
    (document,) = scorer.score([ids])
    kept = np.exp(document.logprobs.reshape(-1, 8).astype(np.float64)).sum(1)
    np.testing.assert_allclose(kept + document.tail_mass, 1, atol=1e-6)
    with torch.inference_mode():
        hidden = scorer.model.model(torch.from_numpy(ids.astype(np.int64))[None]).last_hidden_state[0, :-1]
        logprobs = (hidden.double() @ scorer.head.double().T).log_softmax(-1).numpy()
    np.testing.assert_allclose(document.label_logprob, logprobs[np.arange(23), ids[1:]], atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_weight_names_the_document(tmp_path, value, mode):
    write_teacher(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["model.embed_tokens.weight"][77, 3] = value  # only documents with token 77 are hurt
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    scorer = engine(tmp_path, targets=MODES[mode])
    ids = [np.full(length, token, dtype=np.int32) for length, token in ((9, 1), (3, 2), (5, 77), (20, 4))]
    with pytest.raises(ScoringError, match="document 2: the teacher gives a non-finite value") as error:
        scorer.score(ids)
    assert error.value.position == 2
    assert len(scorer.score(ids[:2])) == 2


def test_a_token_outside_the_vocabulary_names_document_and_sizes(teachers):
    ids = [*documents([4]), np.array([1, 128], dtype=np.int32)]
    with pytest.raises(TeacherError, match=r"document 1: token id 128 is outside the teacher's 128 rows"):
        engine(teachers("qwen3")).score(ids)


def test_a_k_above_the_vocabulary_is_refused(teachers):
    with pytest.raises(TeacherError, match=r"targets.k=200: .* 128 entries"):
        engine(teachers("qwen3"), targets={"k": 200})


def test_k_of_the_whole_vocabulary_has_no_tail(teachers):
    (document,) = engine(teachers("qwen3"), targets={"k": 128}).score(documents([6]))
    assert np.isneginf(document.tail_logprob).all()
    np.testing.assert_allclose(np.exp(document.logprobs.reshape(-1, 128).astype(np.float64)).sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True])
def test_the_interface_is_what_a_student_needs(tmp_path, tied):
    write_teacher(tmp_path, tied=tied)
    saved, interface = load_file(tmp_path / "model.safetensors"), engine(tmp_path).interface()
    wanted = {"embed_tokens.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight"}
    wanted |= {} if tied else {"lm_head.weight": "lm_head.weight"}
    assert set(interface.tensors) == set(wanted)
    for name, there in wanted.items():
        assert torch.equal(interface.tensors[name], saved[there])
    assert (interface.config["model_type"], interface.config["tie_word_embeddings"]) == ("qwen3", tied)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_interface_can_be_read_without_the_model(tmp_path, tied, dtype):
    """For an engine that has the model elsewhere: the same tensors and config, in one file or several."""
    model = AutoModelForCausalLM.from_pretrained(write_teacher(tmp_path / "one", tied=tied))
    model.save_pretrained(tmp_path / "several", max_shard_size="20KB")
    assert (tmp_path / "several" / INDEX).is_file()
    for name in ("one", "several"):
        files, loaded = TeacherFiles(tmp_path / name), engine(tmp_path / name, teacher={"dtype": dtype}).interface()
        read = read_interface(files, require_family(files), getattr(torch, dtype))
        assert read.config == loaded.config and read.tensors.keys() == loaded.tensors.keys()
        assert all(torch.equal(read.tensors[key], loaded.tensors[key]) for key in read.tensors)


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    files = TeacherFiles(write_teacher(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(TeacherError, match=r"tensor model.norm.weight cannot be read \(.*\); copy the folder again"):
        read_interface(files, require_family(files), torch.float32)


def test_a_refusal_crosses_processes():
    error = pickle.loads(pickle.dumps(ScoringError(3, "is empty")))
    assert (error.position, error.problem, str(error)) == (3, "is empty", "document 3: is empty")
