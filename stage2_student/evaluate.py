"""Evaluation on the fixed cached split: the training loss's own kernels, no gradient, nothing of size tokens x vocabulary."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.contract.logit_cache import LogitCache
from pipeline.contract.manifest.student import StudentManifest
from stage2_student.batches import MicroBatches
from stage2_student.engine import Processes
from stage2_student.loss import fused_distillation_loss
from stage2_student.micro_batches import deal, greedy_cut
from stage2_student.model.student import BlockStackForCausalLM


@dataclass(frozen=True)
class Evaluation:
    """Means over all target tokens of the split, in nats; `ppl` = exp(ce). `kl` is of the tail mode's kind."""

    ce: float
    kl: float
    kd: float
    tokens: int

    @property
    def ppl(self) -> float:
        return math.exp(min(self.ce, 700.0))

    def as_metrics(self) -> dict[str, float]:
        return {"val/ce": self.ce, "val/kl": self.kl, "val/kd": self.kd, "val/ppl": self.ppl, "val/tokens": self.tokens}


@torch.no_grad()
def evaluate(
    model: BlockStackForCausalLM,
    validation: LogitCache,
    settings: StudentManifest,
    processes: Processes,
    documents: Sequence[int] | None = None,
) -> Evaluation:
    """Evaluate on `documents` (default: all) of `validation`, shared out over ranks. Every rank calls it."""
    chosen = list(range(len(validation)) if documents is None else documents)
    lengths = [int(validation.input_tokens[index]) for index in chosen]
    sums = torch.zeros(4, dtype=torch.float64)  # ce, kl, kd, tokens
    was_training = model.training
    model.eval()
    batches = MicroBatches(validation, model.config.vocab_size, settings.temperature)
    for members in _cut(lengths, processes, settings.micro_batch_tokens):
        batch = batches[[chosen[place] for place in members]].to(processes.device)
        loss = model(
            batch.input_ids,
            head_loss=lambda hidden, weight, batch=batch: fused_distillation_loss(
                hidden.flatten(0, 1),
                weight,
                batch.labels,
                batch.targets,
                alpha=1.0,
                gamma=0.0,
                temperature=settings.temperature,
                tail=settings.decided_tail,
                tokens=1.0,
            ),
        )
        sums += torch.stack([loss.ce, loss.kl, loss.kd, loss.ce.new_tensor(batch.tokens)]).double().cpu()
    model.train(was_training)
    ce, kl, kd, tokens = processes.sum(sums.to(processes.device)).tolist()
    return Evaluation(ce / tokens, kl / tokens, kd / tokens, int(tokens))


def _cut(lengths: list[int], processes: Processes, budget: int) -> list[list[int]]:
    """This rank's batches, as places; as many as any rank has, for under ZeRO 3 every forward is a meeting of all."""
    cuts = [greedy_cut(lengths, members, budget) for members in deal(lengths, processes.world_size)]
    mine = cuts[processes.rank]
    return mine + [[]] * (max(map(len, cuts)) - len(mine))


def teacher_ce(validation: LogitCache) -> float:
    """The teacher's own cross-entropy on the split, from its cached label logprobs, in nats a target token."""
    return -sum(shard.label_logprob_sum for shard in validation.record.shards) / validation.record.tokens
