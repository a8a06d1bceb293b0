"""A grammar that does not compile in time: whose fault that is, and what its client is told."""

from concurrent.futures import Future

import pytest

from vllm_obs.engine.errors import RequestError, RequestFailedError
from vllm_obs.engine.frontend import grammar_check
from vllm_obs.engine.frontend.grammar_check import GrammarCheck
from vllm_obs.engine.structured.params import StructuredOutputsParams


class SlowCompiler:
    """Compiles nothing: all of its threads are busy, with this grammar or with others."""

    def __init__(self, is_begun: bool) -> None:
        self._is_begun = is_begun

    def compile(self, grammar: str) -> "Future[object]":
        compiled: Future[object] = Future()
        if self._is_begun:
            compiled.set_running_or_notify_cancel()
        return compiled


def reason_of(monkeypatch: pytest.MonkeyPatch, is_begun: bool) -> str:
    monkeypatch.setattr(grammar_check, "CHECK_SECONDS", 0.01)
    monkeypatch.setattr(grammar_check, "GrammarCompiler", lambda make_table: SlowCompiler(is_begun))
    with pytest.raises((RequestError, RequestFailedError)) as caught:
        GrammarCheck(None, 8).grammar_of(StructuredOutputsParams(regex="a+"))  # type: ignore[arg-type]
    return caught.value.reason


@pytest.mark.parametrize(("is_begun", "reason"), [(True, "unsupported"), (False, "under_pressure")])
def test_only_a_grammar_that_was_begun_is_too_slow(
    monkeypatch: pytest.MonkeyPatch, is_begun: bool, reason: str
) -> None:
    assert reason_of(monkeypatch, is_begun) == reason
