"""Grammars of which each rule names the next compile, however many there are, and end no process."""

import threading

import pytest
from default_model import default_tokenizer

from vllm_obs.engine.structured.compiler import GrammarCompiler
from vllm_obs.engine.structured.deep_stack import on_stack_of
from vllm_obs.engine.structured.grammar_text import lark_grammar
from vllm_obs.engine.structured.token_table import TokenWords, token_table


def test_what_a_call_returns_or_raises_comes_back_and_other_threads_have_their_own_size() -> None:
    before = threading.stack_size()
    assert on_stack_of(100_000_001, lambda: 7) == 7
    with pytest.raises(KeyError):
        on_stack_of(1 << 20, lambda: {}["x"])
    assert threading.stack_size() == before
    assert not [thread for thread in threading.enumerate() if thread.name == "deep stack"]


def test_a_stack_that_cannot_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="no room"):
        on_stack_of(1 << 60, lambda: 7)


def test_the_longest_chain_of_rules_compiles() -> None:
    rules = "".join(f"r{n}:r{n + 1}\n" for n in range(17_000))
    compiler = GrammarCompiler(lambda: token_table(TokenWords.of(default_tokenizer(), 49_152), 49_152))
    try:
        matcher = compiler.compile(lark_grammar(f'start:r0\n{rules}r17000:"a"\n')).result(60)
        assert not matcher.is_error()
    finally:
        compiler.close()
