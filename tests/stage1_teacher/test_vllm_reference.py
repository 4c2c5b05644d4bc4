"""vLLM's rows by two slow ways: its public `prompt_logprobs`, as Python objects, and 2,000 samples of whole rows (field case 25)."""

import numpy as np
import pytest
import torch
from tiny_teacher import write_teacher
from vllm_process import ENGINES, needs_vllm, score, transformers_score
from vllm_rows import SWAP, documents

from pipeline.contract.logit_cache.draws import DRAW_BITS
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.targets import keep_sampled

pytestmark = needs_vllm
K, C, SEEDS = 8, 1 / 16, 2_000


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher"), head_dim=32)


def test_the_fast_path_is_what_prompt_logprobs_says(vllm_child, teacher):
    """Row t is of the token after t: the first token has none, and the row after the last one is not stored."""
    ids = documents([7, 24, 2, 13])
    (found,) = vllm_child.call(score, teacher, ids, [Targets(k=K)])
    for tokens, document, wanted in zip(ids, found, vllm_child.call(by_prompt_logprobs, teacher, ids), strict=True):
        assert document.tokens == len(wanted) == len(tokens) - 1
        for t, entries in enumerate(wanted):
            best = {token: logprob for token, (logprob, rank) in entries.items() if rank <= K}
            ours = dict(zip(*document.row(t), strict=True))
            assert len(ours) == len(best) == K
            edge = min(best.values())
            assert all(abs({**ours, **best}[token] - edge) < SWAP for token in ours.keys() ^ best.keys())
            assert all(abs(ours[token] - best[token]) < 1e-3 for token in ours.keys() & best.keys())
            assert abs(document.label_logprob[t] - entries[tokens[t + 1]][0]) < 1e-3


def by_prompt_logprobs(folder, ids):
    """In the child: of every token but the first, {id: (logprob, rank)} of the K best and of the token itself."""
    from vllm import LLM, ModelRegistry, SamplingParams
    from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM

    from stage1_teacher.engines.vllm_start import _kept_from_vllm

    ModelRegistry.register_model("Qwen3ForCausalLM", Qwen3ForCausalLM)
    settings = {"dtype": "float32", "max_model_len": 32, "skip_tokenizer_init": True, "enable_prefix_caching": False}
    with _kept_from_vllm():
        model = LLM(str(folder), enforce_eager=True, max_logprobs=K, **settings)
    ENGINES["prompt_logprobs"] = model  # kept: its end would be that of the process group which all engines here share
    asked = SamplingParams(prompt_logprobs=K, max_tokens=1, detokenize=False)
    outputs = model.generate([{"prompt_token_ids": each.tolist()} for each in ids], asked, use_tqdm=False)
    rows = [output.prompt_logprobs[1:] for output in outputs]
    return [[{token: (each.logprob, each.rank) for token, each in row.items()} for row in document] for document in rows]


def test_samples_of_both_engines_have_the_same_means(vllm_child, teacher):
    """Each engine's whole rows of one forward, and 2,000 draws of each row by the product's sampler, others for either."""
    whole, ids = [Targets(k=128)], documents([9])
    ours, theirs = (dense(rows[0][0]) for rows in (vllm_child.call(score, teacher, ids, whole), transformers_score(teacher, ids, whole)))
    means = [sample_means(rows, seed) for seed, rows in enumerate((ours, theirs))]
    q = theirs.exp().numpy()
    chance = np.clip(q / C, 0, 1)
    error = C * np.sqrt(chance * (1 - chance) / SEEDS)  # of a mean; none of an entry that is kept for certain
    often = chance * SEEDS > 10
    assert often.sum() > 500 and (q >= C).sum() > 10
    for mean in means:
        assert (np.abs(mean - q) <= 4 * error + 1e-5)[often].all()
    assert (np.abs(means[0] - means[1]) <= 4 * 2**0.5 * error + 1e-5)[often].all()
    assert (np.abs(means[0][1:] - q[:-1]) > 4 * error[:-1] + 1e-5)[often[:-1]].mean() > 0.5  # rows that are off by one are seen


def dense(document) -> torch.Tensor:
    """[T-1, V] logprobs of a document all of whose entries were kept."""
    rows = torch.zeros(document.tokens, 128)
    return rows.scatter_(-1, torch.from_numpy(document.ids.reshape(-1, 128)).long(), torch.from_numpy(document.logprobs.reshape(-1, 128)))


def sample_means(rows: torch.Tensor, seed: int) -> np.ndarray:
    """[T-1, V] means of an id's weight over the samples."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for row in rows:
        draws = torch.randint(1 << DRAW_BITS, (SEEDS,), generator=generator)
        kept = keep_sampled(row.repeat(SEEDS, 1), torch.zeros(SEEDS, dtype=torch.int64), C, draws)
        filled = torch.arange(kept.ids.shape[1]) < kept.counts[:, None]
        found.append(torch.zeros(SEEDS, 128).scatter_add_(-1, kept.ids, kept.logprobs.exp() * filled).mean(0).numpy())
    return np.stack(found)
