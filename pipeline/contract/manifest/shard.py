"""A named shard: which documents, which teacher, and what of its distribution to keep."""

from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator

from pipeline.contract.errors import NotThereYet
from pipeline.contract.manifest.strict import Strict

MAX_KEPT_ENTRIES = 255  # n entries a row are stored as uint8


class Teacher(Strict):
    """The model whose distributions are cached."""

    model: str = Field(description="hub name, folder, or 'package:NAME/FILE.gguf' of an installed package")
    revision: str | None = Field(None, description="hub revision; recorded with the cache")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the body; head product and softmax are float32 always")


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
    files: list[str] = Field(default=[], description="files, folders, globs, or hub:datasets/OWNER/NAME/PATTERN")
    packages: dict[str, str] = Field(default={}, description="installed: packages whose docstrings are read, by version")
    column: str = Field("text", description="parquet, jsonl: the column that holds the text")
    limit: PositiveInt = Field(description="training documents")
    validation: Validation
    max_length: int = Field(8192, ge=2, description="tokens a document, separator included")
    separator: str = Field("<|endoftext|>", description="follows every document that is not truncated")
    undecodable: Literal["error", "skip", "replace"] = Field("error", description="what to do with text that is not UTF-8")
    duplicates: Literal["keep"] = "keep"

    @field_validator("duplicates", mode="before")
    @classmethod
    def _only_keep_yet(cls, value: Any) -> Any:
        if value != "keep":
            raise NotThereYet(f"documents.duplicates={value}: this version keeps duplicates; use 'keep'")
        return value

    @field_validator("files", mode="before")
    @classmethod
    def _one_file_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class Targets(Strict):
    """Which entries of a distribution are kept."""

    mode: Literal["topk", "threshold", "sampled"] = "topk"
    k: int = Field(64, ge=1, le=MAX_KEPT_ENTRIES)
    c: float = Field(1 / 128, gt=0, lt=1)
    temperatures: list[float] = [1.0]

    @field_validator("mode")
    @classmethod
    def _only_topk_yet(cls, value: str) -> str:
        if value != "topk":
            raise NotThereYet(f"targets.mode={value}: this version keeps 'topk' only; use --set targets.mode=topk")
        return value

    @field_validator("temperatures")
    @classmethod
    def _only_one_yet(cls, value: list[float]) -> list[float]:
        if value != [1.0]:
            raise NotThereYet(f"targets.temperatures={value}: this version captures temperature 1.0 only; use [1.0]")
        return value


class CacheLayout(Strict):
    """How the cache is cut; no figure depends on it, the bytes do."""

    documents_per_shard: PositiveInt = 2048
    tokens_per_batch: PositiveInt = Field(8192, description="padded tokens the teacher sees at once, and about a record batch")
    rows_per_chunk: PositiveInt = Field(512, description="rows of [rows, vocabulary] float32 that exist at once")


class ShardManifest(Strict):
    """One shard: everything stage one needs, and the settings of students that fit it (`student`)."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    about: str = ""
    teacher: Teacher
    documents: Documents
    targets: Targets = Targets()
    engine: Literal["transformers", "vllm"] = "transformers"
    cache: CacheLayout = CacheLayout()
    student: dict[str, Any] = Field(default={}, description="student settings that fit this shard; beats the paper's defaults")
