"""A byte-pair vocabulary of one's own, by `tokenizers`: bytes, merges and the separator; any text can be encoded."""

from collections.abc import Iterator
from typing import Any

from pipeline.contract.errors import TeacherError


def train_tokenizer(texts: Iterator[str], vocab_size: int, separator: str) -> Any:
    """A `PreTrainedTokenizerFast` of exactly `vocab_size` tokens, the same for the same texts; the separator is its only special token.

    Raises:
        TeacherError: the texts have too few different pairs of bytes for so many tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[separator],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise TeacherError(
            f"teacher.training.vocab_size={vocab_size}: the training documents give {found} tokens; use that many, or more documents"
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=separator, pad_token=separator)
