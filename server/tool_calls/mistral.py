"""The forms of Mistral: [TOOL_CALLS] and then a list of calls in JSON, or name{…} (or name[ARGS]{…})."""

from collections.abc import Sequence
from enum import Enum

from vllm_obs.server.tool_calls.events import CallDelta, Content, Event, Tool
from vllm_obs.server.tool_calls.held_text import HeldText
from vllm_obs.server.tool_calls.json_call import JsonCall, JsonValue

MARKER = "[TOOL_CALLS]"
ARGUMENTS_MARKER = "[ARGS]"
MAX_NAME_CHARS = 256


class _Form(Enum):
    """What is being read."""

    CONTENT = 0
    START = 1
    LIST = 2
    NAME = 3
    ARGUMENTS = 4


class MistralParser:
    """Older models write one list, newer ones a marker, a name and an object for each call.

    What does not turn out to be a call after all is content, the marker included where no call came after it.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._held = HeldText(MARKER)
        self._form = _Form.CONTENT
        self._call: JsonCall | None = None
        self._value = JsonValue()
        self._raw = ""
        self._has_called = False
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        while text:
            if self._form is _Form.CONTENT:
                content, marker, text = self._held.feed(text)
                events += content
                if marker is not None:
                    self._form, self._raw, self._has_called = _Form.START, "", False
            else:
                events += self._feed_char(text[0])
                text = text[1:]
        return events

    def finish(self) -> list[Event]:
        """What was held back."""
        if self._form is _Form.CONTENT:
            return self._held.finish()
        is_open = self._call is not None and not self._call.name
        return self._give_up() if is_open or not self._has_called else []

    def _feed_char(self, char: str) -> list[Event]:
        if self._form is _Form.ARGUMENTS:
            return self._feed_arguments(char)
        self._raw += char
        if self._form is _Form.START:
            if char.isspace():
                return []
            self._form = _Form.LIST if char == "[" else _Form.NAME
            return [] if char == "[" else self._feed_name(char)
        return self._feed_list(char) if self._form is _Form.LIST else self._feed_name(char)

    def _feed_list(self, char: str) -> list[Event]:
        if self._call is None:
            if char == "{":
                self._begin_call()
            elif char == "]":
                return self._end_list()
            else:
                return []
        assert self._call is not None, "an object has begun"
        deltas: list[Event] = list(self._call.feed(char))
        if not self._call.is_over:
            return deltas
        if not self._call.name:
            return self._give_up()
        self._call, self._has_called = None, True
        self._num_calls += 1
        return deltas

    def _begin_call(self) -> None:
        self._call = JsonCall(self._num_calls)
        if self._has_called:
            self._raw = "{"

    def _end_list(self) -> list[Event]:
        if not self._has_called:
            return self._give_up()
        self._form = _Form.CONTENT
        return []

    def _feed_name(self, char: str) -> list[Event]:
        if char != "{":
            return self._give_up() if len(self._raw) > MAX_NAME_CHARS else []
        name = self._raw[:-1].strip().removesuffix(ARGUMENTS_MARKER).strip()
        if not name:
            return self._give_up()
        self._form, self._value, self._has_called = _Form.ARGUMENTS, JsonValue(), True
        return [CallDelta(self._num_calls, name), *self._feed_arguments(char)]

    def _feed_arguments(self, char: str) -> list[Event]:
        self._value.feed(char)
        if self._value.is_over:
            self._form = _Form.CONTENT
            self._num_calls += 1
            return [CallDelta(self._num_calls - 1, arguments=char)]
        return [CallDelta(self._num_calls, arguments=char)]

    def _give_up(self) -> list[Event]:
        """What came since the marker, or since the last call, is content."""
        marker = [] if self._has_called else self._held.not_found(MARKER)
        self._form, self._call = _Form.CONTENT, None
        return [*marker, Content(self._raw)] if self._raw else marker
