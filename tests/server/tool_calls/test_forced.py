"""Replies that a grammar made into calls: their numbers have no gaps, however they come."""

import pytest

from vllm_obs.server.tool_calls.events import CallDelta, ParsedCall, ParsedReply, joined
from vllm_obs.server.tool_calls.forced import NamedReader, RequiredReader

TWO = '[{"name": "f", "parameters": {"a": "}"}}, {"name": "g", "parameters": {}}]'
CALLS = [ParsedCall("f", '{"a": "}"}'), ParsedCall("g", "{}")]


@pytest.mark.parametrize("text", [TWO, f'[{{"x": 1}}, {TWO[1:]}'])
def test_calls_are_numbered_from_zero(text: str) -> None:
    for pieces in ([text], list(text)):
        reader = RequiredReader()
        events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
        assert joined(events) == ParsedReply("", CALLS)
        assert {event.call for event in events if isinstance(event, CallDelta)} == {0, 1}


def test_a_named_call_has_its_name_once() -> None:
    reader = NamedReader("f")
    events = [event for piece in ("", '{"a"', ": 1}") for event in reader.feed(piece)]
    assert events == [CallDelta(0, "f"), CallDelta(0, arguments='{"a"'), CallDelta(0, arguments=": 1}")]
