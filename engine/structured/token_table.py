"""The model's tokens as llguidance needs them to tell which of them a grammar allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from llguidance import LLTokenizer

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.frontend.gguf_tokenizer import read_gguf_words
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from vllm_obs.engine.model.reading import reading

Encode = Callable[[str], list[int]]


@dataclass(frozen=True)
class TokenWords:
    """What each token stands for, which are special, and which end a text; `encode` turns plain text into ids."""

    tokens: list[bytes]
    special_ids: list[int]
    eos_ids: Sequence[int]
    bos_id: int | None
    encode: Encode

    @classmethod
    def of(cls, tokenizer: Tokenizer, vocab_size: int) -> "TokenWords":
        """Those of a tokenizer, as many as there are logits."""
        ids = range(min(tokenizer.vocab_size, vocab_size))
        return cls(
            tokens=[tokenizer.token_bytes(token_id) for token_id in ids],
            special_ids=[token_id for token_id in ids if tokenizer.is_special(token_id)],
            eos_ids=tokenizer.eos_token_ids,
            bos_id=tokenizer.bos_token_id,
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
        )

    @classmethod
    def load(cls, model: ModelConfig) -> "TokenWords":
        """Those of a model whose tokenizer has not been read yet; it is read once a text is to be encoded."""
        if not model.tokenizer.endswith(".gguf"):
            return cls.of(load_tokenizer(model), model.architecture.vocab_size)
        with reading(model.tokenizer):
            words, vocabulary = read_gguf_words(model.tokenizer, model.architecture)
        words = words[: model.architecture.vocab_size]
        tokenizer = cache(lambda: load_tokenizer(model))
        return cls(
            tokens=[vocabulary.spell(token_id, word) for token_id, word in enumerate(words)],
            special_ids=sorted(token_id for token_id in vocabulary.special.values() if token_id < len(words)),
            eos_ids=vocabulary.eos_token_ids,
            bos_id=vocabulary.bos_token_id,
            encode=lambda text: tokenizer().encode(text, add_special_tokens=False),
        )


class _AsRead:
    """The attributes that llguidance reads from a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, words: TokenWords) -> None:
        # Every model ends in some way; without a token of its own for that none may end a grammar.
        self.eos_token_id = words.eos_ids[0] if words.eos_ids else 0
        self.bos_token_id = words.bos_id
        self.tokens = words.tokens
        self.special_token_ids = words.special_ids
        self._encode = words.encode

    def __call__(self, text: str | bytes) -> list[int]:
        return self._encode(text if isinstance(text, str) else text.decode("utf-8", "replace"))


def token_table(words: TokenWords, vocab_size: int, makes_masks: bool = True) -> LLTokenizer:
    """The table for logits of `vocab_size`. Ids without a token are never allowed.

    Takes a tenth of a second, half as long where only grammars are checked: then a mask takes longer to make.
    """
    slices = LLTokenizer.general_slices() if makes_masks else []
    ends = list(words.eos_ids) or None
    return LLTokenizer(_AsRead(words), n_vocab=vocab_size, eos_token=ends, slices=slices)  # type: ignore[arg-type]


def load_token_table(model: ModelConfig) -> LLTokenizer:
    """The table of a model whose tokenizer has not been read yet."""
    return token_table(TokenWords.load(model), model.architecture.vocab_size)
