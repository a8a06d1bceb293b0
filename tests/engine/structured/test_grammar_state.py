"""A grammar is followed token by token, as long as that takes no more work than is allowed."""

from concurrent.futures import Future

import pytest
from default_model import default_tokenizer
from llguidance import LLMatcher, LLTokenizer

from vllm_obs.engine.errors import RequestFailedError
from vllm_obs.engine.structured.compiler import build_matcher
from vllm_obs.engine.structured.grammar_state import GrammarState
from vllm_obs.engine.structured.params import StructuredOutputsParams


def begun(tokens: LLTokenizer, regex: str) -> GrammarState:
    compiled: Future[LLMatcher] = Future()
    compiled.set_result(build_matcher(tokens, StructuredOutputsParams(regex=regex).grammar_text()))
    state = GrammarState(compiled)
    state.begin()
    return state


def token(text: str) -> int:
    (only,) = default_tokenizer().encode(text, add_special_tokens=False)
    return only


def test_a_grammar_is_over_when_no_token_may_follow(tokens: LLTokenizer) -> None:
    state = begun(tokens, "yes")
    assert not state.is_over
    state.accept(token("yes"))
    assert state.is_over


@pytest.mark.parametrize(
    ("regex", "text", "reason"), [("abc", "yes", "internal_error"), ("(a{1000}){1000}", "aaaa", "unsupported")]
)
def test_a_token_it_does_not_allow_is_our_fault_and_too_much_work_the_client_s(
    tokens: LLTokenizer, regex: str, text: str, reason: str
) -> None:
    with pytest.raises(RequestFailedError) as raised:
        begun(tokens, regex).accept(token(text))
    assert raised.value.reason == reason
