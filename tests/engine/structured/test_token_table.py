"""The tokens are the same whether a tokenizer was read for them or only its words, and so is what is allowed."""

import json

import numpy as np
from default_model import default_config, default_tokenizer
from llguidance import LLMatcher

from vllm_obs.engine.structured.token_table import TokenWords, token_table

GRAMMAR = json.dumps(
    {"grammars": [{"json_schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}]}
)


def without_encode(words: TokenWords) -> list[object]:
    return [words.tokens, words.special_ids, list(words.eos_ids), words.bos_id]


def test_the_words_of_the_default_model_are_its_tokenizers() -> None:
    model = default_config().model
    read, loaded = TokenWords.of(default_tokenizer(), model.architecture.vocab_size), TokenWords.load(model)
    assert without_encode(loaded) == without_encode(read)
    assert loaded.encode("Hello <|im_end|>") == read.encode("Hello <|im_end|>")


def test_a_table_that_only_checks_allows_what_one_that_makes_masks_does() -> None:
    tokenizer, vocab_size = default_tokenizer(), default_config().model.architecture.vocab_size
    words = TokenWords.of(tokenizer, vocab_size)
    matchers = [LLMatcher(token_table(words, vocab_size, makes_masks), GRAMMAR) for makes_masks in (True, False)]
    for token_id in tokenizer.encode('{"a": "x \\n wörld"}', add_special_tokens=False):
        first, second = (np.frombuffer(matcher.compute_bitmask(), np.uint8) for matcher in matchers)
        assert np.array_equal(first, second)
        assert all(matcher.consume_token(token_id) for matcher in matchers)
    assert all(matcher.is_accepting() for matcher in matchers)
