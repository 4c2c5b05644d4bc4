"""Small real teachers: random weights of a supported family, a word tokenizer, saved as any Hugging Face folder is."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config

QWEN3_VOCAB, QWEN3_SEPARATOR = 151_936, 151_643
WORDS = [f"word{i}" for i in range(60)]
CONFIGS = {"qwen3": Qwen3Config, "qwen2": Qwen2Config, "llama": LlamaConfig}


def write_teacher(
    folder: Path, *, family: str = "qwen3", vocab_size: int = 128, seed: int = 0, tied: bool = False, head_dim: int = 8
) -> Path:
    """A two-layer teacher of four heads. With Qwen3's vocabulary size the ids are Qwen3's: 18 bits, separator 151,643."""
    torch.manual_seed(seed)
    head = {"head_dim": head_dim} if family == "qwen3" else {}
    config = CONFIGS[family](
        vocab_size=vocab_size,
        hidden_size=4 * head_dim,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        **head,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    write_tokenizer(folder, vocab_size)
    return folder


def write_tokenizer(folder: Path, vocab_size: int) -> None:
    """One token a word, ids spread over the vocabulary."""
    separator = QWEN3_SEPARATOR if vocab_size == QWEN3_VOCAB else vocab_size - 2
    step = (separator - 2) // len(WORDS)
    vocab = {"<unk>": 0, "<|endoftext|>": separator} | {word: 1 + i * step for i, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    wrapped.save_pretrained(folder)


def text(length: int, start: int = 0) -> str:
    """A document of `length` words."""
    return " ".join(WORDS[(start * 7 + i * i) % len(WORDS)] for i in range(length))


def write_parquet(path: Path, texts: list[str | None]) -> Path:
    """Documents in FineWeb-Edu's layout."""
    count = len(texts)
    columns = {
        "text": pa.array(texts, pa.string()),
        "id": [f"<urn:uuid:{i}>" for i in range(count)],
        "dump": ["CC-MAIN-2024-10"] * count,
        "url": [f"https://example.org/{i}" for i in range(count)],
        "date": ["2024-03-01T00:00:00Z"] * count,
        "file_path": ["s3://example"] * count,
        "language": ["en"] * count,
        "language_score": [0.9] * count,
        "token_count": [len((t or "").split()) for t in texts],
    }
    pq.write_table(pa.table(columns), path)
    return path
