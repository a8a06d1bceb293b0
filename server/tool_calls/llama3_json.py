"""The form of Llama 3: the whole reply is {"name": …, "parameters": …}, or several with semicolons between."""

from collections.abc import Sequence

from vllm_obs.server.tool_calls.events import Content, Event, Tool
from vllm_obs.server.tool_calls.json_call import JsonCall, Place

TAG = "<|python_tag|>"


class Llama3JsonParser:
    """A reply that does not begin like a call is content to its end."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._start = ""
        self._is_content = False
        self._is_begun = False
        self._call: JsonCall | None = None
        self._raw = ""
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        if self._is_content:
            return [Content(text)] if text else []
        if not self._is_begun:
            self._start += text
            text = self._begin()
            if self._is_content:
                return [Content(self._start)]
        events: list[Event] = []
        for position, char in enumerate(text):
            events += self._feed_char(char)
            if self._is_content:
                return [*events, *([Content(text[position + 1 :])] if text[position + 1 :] else [])]
        return events

    def finish(self) -> list[Event]:
        """What was held back; a call that was cut off before its name is content."""
        if not self._is_begun and not self._is_content:
            return [Content(self._start)] if self._start else []
        return [Content(self._raw)] if self._call is not None and not self._call.name else []

    def _begin(self) -> str:
        """What follows the beginning of calls, once there is one; or all is content."""
        start = self._start.lstrip()
        if not start or (TAG.startswith(start) and start != TAG):
            return ""
        is_tagged = start.startswith(TAG)
        rest = start.removeprefix(TAG).lstrip() if is_tagged else start
        if not rest:
            return ""
        self._is_begun = rest.startswith("{")
        self._is_content = not self._is_begun
        return rest if self._is_begun else ""

    def _feed_char(self, char: str) -> list[Event]:
        if self._call is None:
            if char != "{":
                return []
            self._call, self._raw = JsonCall(self._num_calls), ""
        self._raw += char
        events: list[Event] = list(self._call.feed(char))
        if self._call.place is Place.BROKEN and not self._call.name:
            self._is_content, self._call = True, None
            return [Content(self._raw)]
        if self._call.is_over:
            self._call = None
            self._num_calls += 1
        return events
