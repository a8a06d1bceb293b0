"""The form of Hermes and Qwen: <tool_call>{"name": …, "arguments": …}</tool_call>, as often as needed."""

from collections.abc import Sequence

from vllm_obs.server.tool_calls.events import Content, Event, Tool
from vllm_obs.server.tool_calls.held_text import HeldText
from vllm_obs.server.tool_calls.json_call import JsonCall, Place

BEGIN, END = "<tool_call>", "</tool_call>"


class HermesParser:
    """What does not turn out to be a call after all is content, markers included."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._held = HeldText(BEGIN)
        self._call: JsonCall | None = None
        self._raw = ""
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        while text:
            if self._call is None:
                content, marker, text = self._held.feed(text)
                events += content
                if marker is not None:
                    self._call, self._raw = JsonCall(self._num_calls), BEGIN
            else:
                found, text = self._feed_call(self._call, text)
                events += found
        return events

    def finish(self) -> list[Event]:
        """What was held back; a call that was cut off before its name is content."""
        if self._call is None:
            return self._held.finish()
        call, self._call = self._call, None
        return [] if call.name else [*self._held.not_found(BEGIN), Content(self._raw[len(BEGIN) :])]

    def _feed_call(self, call: JsonCall, text: str) -> tuple[list[Event], str]:
        events: list[Event] = []
        for position, char in enumerate(text):
            self._raw += char
            if not call.is_over:
                events += call.feed(char)
            if call.place is Place.BROKEN and not call.name:
                self._call = None
                # What follows the marker is looked at again: a call may begin in it.
                again = self._raw[len(BEGIN) :] + text[position + 1 :]
                return [*events, *self._held.not_found(BEGIN)], again
            if call.is_over and self._raw.endswith(END):
                self._call = None
                self._num_calls += 1
                return events, text[position + 1 :]
        return events, ""
