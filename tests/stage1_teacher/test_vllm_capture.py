"""The paper's words on the manifest's own engine: `pipeline cache-teacher --shard fineweb-10bt`, with a tiny Qwen3 and a parquet file."""

import json
from unittest.mock import patch

import numpy as np
import pytest
from captures import parquet
from tiny_teacher import write_teacher
from vllm_process import command, needs_vllm

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.logit_cache.verify import verify
from pipeline.contract.store import open_store
from stage1_teacher.engines import vllm_start

pytestmark = needs_vllm


@pytest.fixture(scope="module")
def folder(tmp_path_factory, vllm_child):
    """Captured with vLLM, and under another name with transformers."""
    folder = tmp_path_factory.mktemp("paper")
    teacher = write_teacher(folder / "teacher", vocab_size=151_936, tied=True, head_dim=32)
    files = parquet(folder)
    sets = {
        "teacher.model": teacher,
        "teacher.dtype": "float32",
        "documents.files": files,
        "documents.limit": 14,
        "documents.validation.documents": 3,
        "documents.validation.every": 4,
        "documents.max_length": 24,
        "cache.codec": "plain",
    }
    arguments = [part for key, value in sets.items() for part in ("--set", f"{key}={value}")]
    capture = ("cache-teacher", "--shard", "fineweb-10bt", *arguments)
    vllm_child.call(command, folder, *capture)
    vllm_child.call(command, folder, *capture, "--engine", "transformers", "--set", "name=by-transformers")
    return folder


def test_it_is_whole_and_says_its_engine(folder):
    store = open_store(folder / "artifacts/caches/fineweb-10bt")
    assert verify(store, deep=True).bad == []
    assert json.loads(store.read_bytes("rule.json"))["identity"]["engine"] == "vllm"


@pytest.mark.parametrize("split", ["train", "validation"])
def test_documents_rows_and_values_are_those_of_transformers(folder, split):
    caches = [LogitCache.open(folder / "artifacts/caches" / name, split) for name in ("fineweb-10bt", "by-transformers")]
    assert len(caches[0]) == len(caches[1]) == (14 if split == "train" else 3)
    for index in range(len(caches[0])):
        one, other = (cache[index] for cache in caches)
        np.testing.assert_array_equal(one.token_ids, other.token_ids)
        np.testing.assert_array_equal(one.counts, other.counts)
        np.testing.assert_allclose(one.tail_logprob, other.tail_logprob, atol=1e-3)
        np.testing.assert_allclose(one.label_logprob, other.label_logprob, atol=1e-3)
        for t in range(one.tokens):
            ours, theirs = (dict(zip(*document.row(t), strict=True)) for document in (one, other))
            common = ours.keys() & theirs.keys()
            assert len(common) >= 62  # of 64; the last ones may change places
            assert all(abs(ours[token] - theirs[token]) < 1e-2 for token in common)  # a step of float16, in which they are stored


@pytest.mark.parametrize(("name", "engine"), [("fineweb-10bt", "transformers"), ("by-transformers", "vllm")])
def test_either_engine_audits_the_others_cache(vllm_child, folder, name, engine):
    found = vllm_child.call(command, folder, "cache", "audit", "--shard", name, "--engine", engine, "--documents", "4", "--json")
    assert found["ok"], found["problem"]
    assert found["rows"] > 20


def test_little_memory_and_another_order_change_no_more_than_live_changes_live(vllm_child, folder):
    """Room for two documents at a time, where the capture had it for 63: the audit's limit is the distance of live scorings."""
    found = vllm_child.call(short_of_memory, folder, "cache", "audit", "--shard", "fineweb-10bt", "--documents", "14", "--json")
    assert found["ok"], found["problem"]
    assert len(found["documents"]) == 14


def short_of_memory(folder, *arguments):
    """In the child: a command whose engine has two blocks of 32 tokens, and takes 16 tokens a step."""
    before = vllm_start.arguments
    few = {"num_gpu_blocks_override": 3, "block_size": 32, "max_num_batched_tokens": 32, "long_prefill_token_threshold": 16}
    with patch.object(vllm_start, "arguments", lambda *given: before(*given) | few):
        return command(folder, *arguments)


def test_a_pilot_on_vllm_measures_what_one_on_transformers_does(vllm_child, folder):
    asked = ("pilot", "--shard", "fineweb-10bt", "--documents", "3", "--json")
    ours = vllm_child.call(command, folder, *asked)
    theirs = vllm_child.call(command, folder, *asked, "--engine", "transformers")
    assert (ours["documents"], ours["tokens"]) == (theirs["documents"], theirs["tokens"])
    assert ours["tokens_per_second"] > 0
    for one, other in zip(ours["targets"], theirs["targets"], strict=True):
        assert (one["label"], one["codec"]) == (other["label"], other["codec"])
        assert one["mass_kept"] == pytest.approx(other["mass_kept"], abs=1e-3)
        assert one["bytes_per_token"] == pytest.approx(other["bytes_per_token"], rel=0.02)
