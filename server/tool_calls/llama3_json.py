"""The form of Llama 3: the whole reply is {"name": …, "parameters": …}, or several with semicolons between."""

from collections.abc import Sequence

from vllm_obs.server.tool_calls.events import Content, Event, Tool
from vllm_obs.server.tool_calls.json_call import JsonCall

TAG = "<|python_tag|>"
SEPARATORS = "; ,\t\r\n"


class Llama3JsonParser:
    """A reply that does not begin like a call is content to its end.

    So is an object without name or arguments, with the tag before it, and text after a call that does not set it
    apart from the next one.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._start = ""
        self._is_content = False
        self._is_begun = False
        self._call: JsonCall | None = None
        self._raw = ""
        self._lead = ""
        self._between = ""
        self._begun: list[Event] = []
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
        """What was held back; a call that was cut off before it had name and arguments is content."""
        if not self._is_begun and not self._is_content:
            return [Content(self._start)] if self._start else []
        if self._call is None:
            return [Content(self._between)] if self._between.strip(SEPARATORS) else []
        return [] if self._call.is_call else [Content(self._lead + self._raw)]

    def _begin(self) -> str:
        """What follows the beginning of calls, once there is one; or all is content."""
        start = self._start.lstrip()
        if not start or (TAG.startswith(start) and start != TAG):
            return ""
        is_tagged = start.startswith(TAG)
        rest = start.removeprefix(TAG).lstrip() if is_tagged else start
        if not rest:
            return ""
        self._lead = self._start[: len(self._start) - len(rest)]
        self._is_begun = rest.startswith("{")
        self._is_content = not self._is_begun
        return rest if self._is_begun else ""

    def _feed_char(self, char: str) -> list[Event]:
        if self._call is None:
            lead = self._between.strip(SEPARATORS)
            if char != "{" or lead not in ("", TAG):
                return self._feed_between(char)
            self._lead = lead if self._num_calls else self._lead
            self._call, self._raw, self._between = JsonCall(self._num_calls), "", ""
        self._raw += char
        self._begun += self._call.feed(char)
        if not self._call.is_call:
            return self._give_up() if self._call.is_over else []
        events, self._begun = self._begun, []
        if self._call.is_over:
            self._call = None
            self._num_calls += 1
        return events

    def _feed_between(self, char: str) -> list[Event]:
        """Text after a call, held back while it may come before another one."""
        self._between += char
        if TAG.startswith(self._between.strip(SEPARATORS)):
            return []
        text, self._between, self._is_content = self._between, "", True
        return [Content(text)]

    def _give_up(self) -> list[Event]:
        """The object is no call: it is content, and so is all that follows."""
        self._is_content, self._call = True, None
        return [Content(self._lead + self._raw)]
