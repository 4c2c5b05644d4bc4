"""What the benchmarks measure on: documents of the shard `installed-docs` under its teacher, rows as they come off the head."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np
import torch
from torch import Tensor

from pipeline.contract.hashing import hash_json
from pipeline.contract.logit_cache.draws import row_draws
from pipeline.contract.logit_cache.schema import CachedDocument
from pipeline.contract.manifest.find import load_shard
from pipeline.contract.manifest.shard import Targets
from stage1_teacher.engines.transformers_engine import TransformersEngine
from stage1_teacher.rule import find_inputs
from stage1_teacher.scored import ScoredRows
from stage1_teacher.targets import keep
from stage1_teacher.tokenization import DocumentTokenizer

QWEN3_VOCABULARY = 151_936


class Teacher:
    """SmolLM2 and its documents; `student_layer` gives a student's logits by the teacher's own head ("logit lens")."""

    def __init__(self, max_length: int = 1024) -> None:
        self.shard = load_shard("installed-docs", {"documents.max_length": max_length})
        inputs = find_inputs(self.shard)
        self.documents_hash = hash_json(inputs.identity["documents.content"])
        self.tokenizer = DocumentTokenizer(inputs.teacher, self.shard.documents)
        self.engine = TransformersEngine(inputs.teacher, self.shard)
        self._texts = (raw.text for raw in inputs.documents if raw.text is not None)

    def documents(self, tokens: int) -> list[np.ndarray]:
        """The next documents of the source that hold `tokens` target tokens, more than one token each."""
        taken: list[np.ndarray] = []
        while sum(len(ids) - 1 for ids in taken) < tokens:
            taken += [ids for ids in self.tokenizer.encode(list(islice(self._texts, 8))) if len(ids) > 1]
        return taken

    @torch.inference_mode()
    def logits(self, ids: np.ndarray, layer: int = -1, rows: int = 256) -> Iterator[Tensor]:
        """[rows, V] chunks of a document's float32 logits, from the last layer or from an earlier one under the final norm."""
        states = self.engine.model.model(
            torch.from_numpy(ids.astype(np.int64))[None], use_cache=False, output_hidden_states=True
        ).hidden_states
        hidden = states[-1] if layer == -1 else self.engine.model.model.norm(states[layer])
        for start in range(0, len(ids) - 1, rows):
            yield hidden[0, start : min(start + rows, len(ids) - 1)].float() @ self.engine.head.T


@torch.inference_mode()
def score(ids: np.ndarray, chunks: Sequence[Tensor], targets: Targets) -> CachedDocument:
    """A document's rows under `targets`, the given logits left as they are."""
    labels, draws = torch.from_numpy(ids[1:].astype(np.int64)), torch.from_numpy(row_draws(ids))
    rows, start = ScoredRows(targets), 0
    for chunk in chunks:
        part = slice(start, start + len(chunk))
        rows.add(keep(chunk.clone(), labels[part], targets, draws[part]))
        start = part.stop
    return next(iter(rows.documents([ids])))


def spread(vocab_size: int) -> np.ndarray:
    """[V] int32: where each id goes when a vocabulary is spread over Qwen3's, so that a rank needs its 18 bits."""
    return np.sort(np.random.default_rng(0).permutation(QWEN3_VOCABULARY)[:vocab_size]).astype(np.int32)
