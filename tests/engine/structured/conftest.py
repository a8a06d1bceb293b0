"""The default model's token table, made once a session."""

import pytest
from default_model import default_config, default_tokenizer
from llguidance import LLTokenizer

from vllm_obs.engine.structured.token_table import TokenWords, token_table


@pytest.fixture(scope="session")
def tokens() -> LLTokenizer:
    vocab_size = default_config().model.architecture.vocab_size
    return token_table(TokenWords.of(default_tokenizer(), vocab_size), vocab_size)
