"""The model's tokens as llguidance needs them to tell which of them a grammar allows."""

from llguidance import LLTokenizer, TokenizerWrapper

from vllm_obs.engine.config import ModelConfig
from vllm_obs.engine.frontend.tokenizer import Tokenizer, load_tokenizer


class _TokenTable:
    """The attributes that llguidance reads from a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        ids = range(min(tokenizer.vocab_size, vocab_size))
        self._tokenizer = tokenizer
        # Every model ends in some way; without a token of its own for that none may end a grammar.
        self.eos_token_id = tokenizer.eos_token_ids[0] if tokenizer.eos_token_ids else 0
        self.bos_token_id = tokenizer.bos_token_id
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in ids]
        self.special_token_ids = [token_id for token_id in ids if tokenizer.is_special(token_id)]

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._tokenizer.encode(whole, add_special_tokens=False)


def token_table(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """The table for logits of `vocab_size`; takes tenths of a second. Ids without a token are never allowed."""
    ends = list(tokenizer.eos_token_ids) or None
    return LLTokenizer(TokenizerWrapper(_TokenTable(tokenizer, vocab_size)), n_vocab=vocab_size, eos_token=ends)


def load_token_table(model: ModelConfig) -> LLTokenizer:
    """The table of a model whose tokenizer has not been read yet."""
    return token_table(load_tokenizer(model), model.architecture.vocab_size)
