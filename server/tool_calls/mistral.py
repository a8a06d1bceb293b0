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
    """Older models write one list, newer ones a marker, a name and an object for each call."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._held = HeldText(MARKER)
        self._form = _Form.CONTENT
        self._call: JsonCall | None = None
        self._value = JsonValue()
        self._name = ""
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        while text:
            if self._form is _Form.CONTENT:
                content, marker, text = self._held.feed(text)
                events += content
                if marker is not None:
                    self._form = _Form.START
            else:
                events += self._feed_char(text[0])
                text = text[1:]
        return events

    def finish(self) -> list[Event]:
        """What was held back."""
        if self._form is _Form.CONTENT:
            return self._held.finish()
        return [Content(MARKER + self._name)] if self._form is _Form.NAME and self._name.strip() else []

    def _feed_char(self, char: str) -> list[Event]:
        if self._form is _Form.START:
            if char.isspace():
                return []
            self._form, self._name = (_Form.LIST, "") if char == "[" else (_Form.NAME, "")
            return [] if char == "[" else self._feed_name(char)
        if self._form is _Form.LIST:
            return self._feed_list(char)
        return self._feed_name(char) if self._form is _Form.NAME else self._feed_arguments(char)

    def _feed_list(self, char: str) -> list[Event]:
        if self._call is None:
            if char == "]":
                self._form = _Form.CONTENT
            if char != "{":
                return []
            self._call = JsonCall(self._num_calls)
        deltas: list[Event] = list(self._call.feed(char))
        if self._call.is_over:
            self._num_calls += bool(self._call.name)
            self._call = None
        return deltas

    def _feed_name(self, char: str) -> list[Event]:
        if char != "{":
            self._name += char
            if len(self._name) > MAX_NAME_CHARS:
                self._form = _Form.CONTENT
                return [Content(MARKER + self._name)]
            return []
        self._form, self._value = _Form.ARGUMENTS, JsonValue()
        name = self._name.strip().removesuffix(ARGUMENTS_MARKER).strip()
        return [CallDelta(self._num_calls, name), *self._feed_arguments(char)]

    def _feed_arguments(self, char: str) -> list[Event]:
        self._value.feed(char)
        if self._value.is_over:
            self._form = _Form.CONTENT
            self._num_calls += 1
            return [CallDelta(self._num_calls - 1, arguments=char)]
        return [CallDelta(self._num_calls, arguments=char)]
