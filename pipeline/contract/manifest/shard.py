"""A named shard: which documents, which teacher, and what of its distribution to keep."""

import math
import re
from fractions import Fraction
from typing import Any, Literal, Self

from pydantic import Field, PositiveInt, field_validator, model_validator

from pipeline.contract.manifest.strict import Strict
from pipeline.contract.manifest.teacher_training import TeacherTraining

MAX_KEPT_ENTRIES = 255  # n entries a row are stored as uint8
TRAINED = "trained:"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_FRACTION = re.compile(r" *\d+ */ *[1-9]\d* *")


class Teacher(Strict):
    """The model whose distributions are cached."""

    model: str = Field(
        description="hub name, folder, 'package:NAME/FILE.gguf' of an installed package, or 'trained:NAME', what train-teacher made of "
        "the shard NAME"
    )
    revision: str | None = Field(None, description="hub revision; recorded with the cache")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the body; head product and softmax are float32 always")
    training: TeacherTraining | None = Field(None, description="how 'pipeline train-teacher' makes one of this shard's documents")

    @field_validator("model")
    @classmethod
    def _name_after_trained(cls, model: str) -> str:
        if model.startswith(TRAINED) and not _NAME.fullmatch(model.removeprefix(TRAINED)):
            raise ValueError("after 'trained:' comes the name of the shard whose documents the teacher was trained on")
        return model

    @property
    def trained_on(self) -> str | None:
        """The shard that a teacher of one's own was trained on."""
        return self.model.removeprefix(TRAINED) if self.model.startswith(TRAINED) else None


class Validation(Strict):
    """The fixed validation set: kept document i belongs to it when i % every == 0, until it is full.

    Interleaved near the front, so that it is complete early, never overlaps training, and stays the same when
    the training range is extended.
    """

    documents: int = Field(ge=1)
    every: int = Field(16, ge=2)


class Documents(Strict):
    """Where the text comes from and how it becomes token sequences."""

    source: Literal["parquet", "jsonl", "text", "installed"]
    files: list[str] = Field(default=[], description="files, folders, globs, URLs (s3://...), or hub:datasets/OWNER/NAME/PATTERN")
    packages: dict[str, str] = Field(default={}, description="installed: packages whose docstrings are read, by version")
    column: str = Field("text", description="parquet, jsonl: the column that holds the text")
    limit: PositiveInt = Field(description="training documents")
    validation: Validation
    max_length: int = Field(8192, ge=2, description="tokens a document, separator included")
    separator: str = Field("<|endoftext|>", description="follows every document that is not truncated")
    undecodable: Literal["error", "skip", "replace"] = Field("error", description="what to do with text that is not UTF-8")
    duplicates: Literal["keep", "drop"] = Field("keep", description="drop: of exactly equal texts only the first is kept")

    @field_validator("files", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Targets(Strict):
    """Which entries of a distribution are kept."""

    mode: Literal["topk", "threshold", "sampled"] = "topk"
    k: int = Field(64, ge=1, le=MAX_KEPT_ENTRIES, description="topk: entries a row; threshold: at most so many")
    c: float = Field(1 / 128, gt=0, lt=1, description="threshold, sampled: kept for certain from this probability on; 1/128 may be written")
    temperatures: list[float] = Field([1.0], min_length=1, description="students may train at these; 1 is always among them")
    entropy: bool = Field(False, description="store the teacher's entropy of every row")

    @field_validator("c", mode="before")
    @classmethod
    def _fraction(cls, value: Any) -> Any:
        return float(Fraction(value.replace(" ", ""))) if isinstance(value, str) and _FRACTION.fullmatch(value) else value

    @model_validator(mode="after")
    def _possible(self) -> Self:
        as_named = {f"{tau:g}" for tau in self.all_temperatures}  # a column of the cache each
        above_0 = all(0 < tau < math.inf for tau in self.temperatures)
        if not above_0 or len(set(self.temperatures)) < len(self.temperatures) or len(as_named) < len(self.all_temperatures):
            raise ValueError(f"temperatures={self.temperatures}: have to differ in six digits and to be above 0")
        if self.mode != "sampled":
            return self
        slots = round(1 / self.c)
        if abs(slots * self.c - 1) > 1e-6 or not 2 <= slots < MAX_KEPT_ENTRIES:
            raise ValueError(f"c={self.c}: sampled takes c = 1/N with N from 2 to {MAX_KEPT_ENTRIES - 1}, for example c=1/128")
        if self.other_temperatures:
            raise ValueError(f"temperatures={self.temperatures}: a sample is of one temperature; use [1.0], or mode topk or threshold")
        return self

    @property
    def all_temperatures(self) -> list[float]:
        """What students may train at, rising."""
        return sorted({1.0, *self.temperatures})

    @property
    def other_temperatures(self) -> list[float]:
        """The captured temperatures besides 1, rising."""
        return [tau for tau in self.all_temperatures if tau != 1.0]


class CacheLayout(Strict):
    """How the cache is cut and coded; the bytes depend on it, and no figure does but those of fidelity."""

    documents_per_shard: PositiveInt = 2048
    tokens_per_batch: PositiveInt = Field(8192, description="padded tokens the teacher sees at once, and about a record batch")
    rows_per_chunk: PositiveInt = Field(512, description="rows of [rows, vocabulary] float32 that exist at once")
    threads: PositiveInt = Field(2, description="of the teacher on a CPU, in each worker; recorded, since sums depend on it")
    tensor_parallel: PositiveInt = Field(1, description="vllm: devices that hold one copy of the teacher together")
    vocabulary_tokens: PositiveInt = Field(1_000_000, description="tokens of the first documents that ids are ordered by")
    calibration_rows: PositiveInt = Field(100_000, description="rows of the first documents that codec clusters is fitted to, once")
    codec: Literal["auto", "raw", "plain", "ranks", "streams", "clusters"] = Field(
        "auto", description="auto: clusters where there are enough documents to calibrate on, else streams (sampled) or ranks"
    )


class ShardManifest(Strict):
    """One shard: everything stage one needs, and the settings of students that fit it (`student`)."""

    name: str = Field(pattern=f"^{_NAME.pattern}$")
    about: str = ""
    teacher: Teacher
    documents: Documents
    targets: Targets = Targets()
    engine: Literal["transformers", "vllm"] = "transformers"
    cache: CacheLayout = CacheLayout()
    student: dict[str, Any] = Field(default={}, description="student settings that fit this shard; beats the paper's defaults")
