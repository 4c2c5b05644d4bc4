"""A small teacher's training, to be read aloud: vocabulary, documents, steps, evaluations, the folder.

Plain cross-entropy in float32, one process. It is no way to train a large model; it gives a CPU-sized study a teacher that knows
its documents. Killed at any time and run again, it ends in the same bytes (on a CPU, whose number of threads is recorded).
"""

import math
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch

from pipeline.contract.atomic_io import atomic_path, only_writer, sweep_temporaries
from pipeline.contract.data_order import DocumentOrder
from pipeline.contract.environment import start_record
from pipeline.contract.errors import TeacherError
from pipeline.contract.process import prepare_cpu_process
from pipeline.contract.run_record import Metrics
from pipeline.contract.schedule import learning_rate
from stage1_teacher.documents.base import DocumentSource
from stage1_teacher.documents.open_source import open_documents
from stage1_teacher.engines.base import torch_threads
from stage1_teacher.engines.transformers_engine import batches_by_length
from stage1_teacher.teacher_files import TeacherFiles
from stage1_teacher.tokenization import DocumentTokenizer
from stage1_teacher.training.byte_pairs import train_tokenizer
from stage1_teacher.training.corpus import Corpus, read_corpus, target_tokens, training_texts
from stage1_teacher.training.job import TeacherJob, finished_teacher
from stage1_teacher.training.small_qwen3 import new_model, summed_cross_entropy

PACKAGES = ("block-stack-distillation", "torch", "transformers", "tokenizers", "numpy")

OnRecord = Callable[[Metrics], None]


def train_teacher(job: TeacherJob, on_record: OnRecord = lambda record: None) -> dict[str, Any]:
    """Train, or go on training, to the end; returns the result record.

    Raises:
        DocumentError: the documents cannot be read, or are too few.
        TeacherError: the folder holds another training, or a loss is no number.
        PipelineError: the disk is full, or another process trains this teacher.
    """
    start, source = _start(), open_documents(job.shard.documents)
    config = job.config() | {"documents.content": source.identity()}
    done = finished_teacher(job, config)
    if done:
        job.checkpoint.unlink(missing_ok=True)  # where the last start died before its last line
        return done | {"steps_executed": 0, "resumed_from": job.training.steps}
    with only_writer(job.record.path), torch_threads(job.shard.cache.threads):
        sweep_temporaries(job.record.path)
        job.record.write("config", config)
        tokenizer = _tokenizer(job, source)
        return _Training(job, read_corpus(job.shard, source, tokenizer), tokenizer.separator_id, on_record).run(start)


def _start() -> dict[str, Any]:
    """When, and with what; asked before the documents are read, which may take minutes."""
    return start_record(PACKAGES) | {"device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"}


def _tokenizer(job: TeacherJob, source: DocumentSource) -> DocumentTokenizer:
    """The vocabulary, trained on the training documents unless an earlier start has done so."""
    if not job.tokenizer.is_dir():
        separator = job.shard.documents.separator
        trained = train_tokenizer(training_texts(job.shard, source), job.training.vocab_size, separator)
        with atomic_path(job.tokenizer) as folder:
            trained.save_pretrained(folder)
    return DocumentTokenizer(TeacherFiles(job.tokenizer), job.shard.documents)


class _Training:
    """One start of a training, from its checkpoint if there is one."""

    def __init__(self, job: TeacherJob, corpus: Corpus, separator_id: int, on_record: OnRecord) -> None:
        self.job, self.settings, self.corpus, self.on_record = job, job.training, corpus, on_record
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            prepare_cpu_process()
        self.model = new_model(self.settings, job.shard.documents.max_length, separator_id).to(self.device).train()
        self.optimizer = self._optimizer()
        self.order = DocumentOrder([len(corpus.train)], len(corpus.train), self.settings.seed, "reshuffle")

    def run(self, start: dict[str, Any]) -> dict[str, Any]:
        resumed_from = self._restore()
        self.job.record.keep_metrics([record for record in self.job.record.metrics() if record["step"] <= resumed_from])
        starts = self.job.record.read("provenance") or []
        self.job.record.write("provenance", [*starts, start | {"resumed_from": resumed_from}])
        self._evaluate(resumed_from)
        for step in range(resumed_from, self.settings.steps):
            self._step(step)
            self._evaluate(step + 1)
            if (step + 1) % self.settings.checkpoint_interval == 0:
                self._save(step + 1)
        self._publish()
        result = self._result() | {"steps_executed": self.settings.steps - resumed_from, "resumed_from": resumed_from}
        self.job.record.write("result", result)
        self.job.checkpoint.unlink(missing_ok=True)
        return result

    def _optimizer(self) -> torch.optim.AdamW:
        s, parameters = self.settings, list(self.model.parameters())
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": s.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=s.learning_rate, betas=(s.adam_beta1, s.adam_beta2), eps=s.adam_epsilon)

    def _step(self, step: int) -> None:
        """One update on `global_batch_size` documents: the gradient of the mean over all their target tokens."""
        started = time.monotonic()
        size = self.settings.global_batch_size
        documents = [self.corpus.train[index] for index in self.order.at(step * size, size)]
        tokens = max(1, target_tokens(documents))
        loss, rate = 0.0, learning_rate(step, self.settings)
        for members in batches_by_length([len(ids) for ids in documents], self.settings.micro_batch_tokens):
            summed = summed_cross_entropy(self.model, [documents[place] for place in members], self.device)
            (summed / tokens).backward()
            loss += summed.item() / tokens
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_clip).item()
        if not math.isfinite(norm):
            raise TeacherError(
                f"{self.job.record.path}: the gradient is not finite at step {step + 1}; move the folder away and train with a lower "
                f"rate, for example --set teacher.training.learning_rate={self.settings.learning_rate / 2:g}"
            )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        seconds = time.monotonic() - started
        values = {"train/loss": loss, "optim/lr": rate, "optim/grad_norm": norm, "tokens": tokens}
        self._record("train", step + 1, {**values, "perf/tokens_per_second": tokens / seconds})

    @torch.no_grad()
    def _evaluate(self, step: int) -> None:
        """Validation CE where it is due and not on record; the sum over documents in float64."""
        due = step % self.settings.eval_interval == 0 or step == self.settings.steps
        if not due or any(record["kind"] == "val" and record["step"] == step for record in self.job.record.metrics()):
            return
        documents, total = self.corpus.validation, 0.0
        for members in batches_by_length([len(ids) for ids in documents], self.settings.micro_batch_tokens):
            total += summed_cross_entropy(self.model, [documents[place] for place in members], self.device).item()
        ce = total / target_tokens(documents)
        self._record("val", step, {"val/ce": ce, "val/ppl": math.exp(min(ce, 700.0))})

    def _record(self, kind: str, step: int, values: Metrics) -> None:
        record = {"kind": kind, "step": step, **values}
        self.job.record.append_metrics(record)
        self.on_record(record)

    def _restore(self) -> int:
        """Load the checkpoint; returns the updates it holds, 0 where there is none."""
        path = self.job.checkpoint
        if not path.is_file():
            return 0
        try:
            state = torch.load(path, map_location=self.device, weights_only=True)
        except Exception as error:  # torch, zip and pickle errors share no base
            raise TeacherError(
                f"{path}: cannot be read ({str(error).splitlines()[0][:100]}); remove it to train from the first step"
            ) from None
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])

    def _save(self, step: int) -> None:
        with atomic_path(self.job.checkpoint) as temporary:
            torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": step}, temporary)

    def _publish(self) -> None:
        """The Hugging Face folder, whole or not there."""
        with atomic_path(self.job.model) as folder:
            shutil.copytree(self.job.tokenizer, folder)
            self.model.eval().cpu().save_pretrained(folder)

    def _result(self) -> dict[str, Any]:
        metrics = list(self.job.record.metrics())
        trained = [record for record in metrics if record["kind"] == "train"]
        evaluated = [record for record in metrics if record["kind"] == "val"]
        return {
            "teacher": self.job.record.path.name,
            "steps": self.settings.steps,
            "tokens": sum(record["tokens"] for record in trained),
            "documents": {"train": len(self.corpus.train), "validation": len(self.corpus.validation)},
            "tokens_unique": target_tokens(self.corpus.train),
            "validation_tokens": target_tokens(self.corpus.validation),
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "vocab_size": self.settings.vocab_size,
            "train_loss": trained[-1]["train/loss"],
            "val_ce_start": evaluated[0]["val/ce"],
            "val_ce": evaluated[-1]["val/ce"],
            "val_ppl": evaluated[-1]["val/ppl"],
            "files": TeacherFiles(self.job.model).identity(),
        }
