"""The form of Python: a list of calls with literal arguments, [f(a=1), g()]; nothing is evaluated."""

import ast
from collections.abc import Sequence

from vllm_obs.server.tool_calls.events import CallDelta, Content, Event, Tool
from vllm_obs.server.tool_calls.json_text import json_text

MAX_CALL_CHARS = 65_536
_OPENING, _CLOSING = "([{", ")]}"


class PythonicParser:
    """A call goes out when it is whole. Another reply, and what follows the list, is content."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._raw = ""
        self._call = ""
        self._is_content = False
        self._is_begun = False
        self._depth = 0
        self._quote = ""
        self._is_escaped = False
        self._num_calls = 0
        self._blanks = ""

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        for position, char in enumerate(text):
            if self._is_content:
                return [*events, Content(text[position:])]
            self._raw += char
            events += self._feed_char(char)
        return events

    def finish(self) -> list[Event]:
        """A list without a call is content, and so is a call that was cut off."""
        if self._is_content or (self._depth < 0 and self._num_calls):
            return []
        rest = self._call if self._num_calls else self._raw
        return [Content(rest)] if rest.strip() or (not self._num_calls and rest) else []

    def _feed_char(self, char: str) -> list[Event]:
        if not self._is_begun:
            if char.isspace():
                return []
            self._is_begun = char == "["
            return [] if self._is_begun else self._give_up()
        if self._depth < 0:
            return self._feed_after(char)
        self._scan(char)
        if self._depth < 0 or (char == "," and not self._depth and not self._quote):
            call, self._call = self._call, ""
            return self._end_call(call)
        self._call += char
        return self._give_up() if len(self._call) > MAX_CALL_CHARS else []

    def _feed_after(self, char: str) -> list[Event]:
        """What follows the list: text, without the blanks at its end."""
        if not self._num_calls:
            return []  # all of it is content in the end
        self._blanks += char
        if char.isspace():
            return []
        text, self._blanks = self._blanks, ""
        return [Content(text)]

    def _scan(self, char: str) -> None:
        if self._quote:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "\"'":
            self._quote = char
        elif char in _OPENING:
            self._depth += 1
        elif char in _CLOSING:
            self._depth -= 1

    def _end_call(self, text: str) -> list[Event]:
        if not text.strip():
            return []
        try:
            name, arguments = _read_call(text.strip())
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return self._give_up()
        self._num_calls += 1
        return [CallDelta(self._num_calls - 1, name, arguments)]

    def _give_up(self) -> list[Event]:
        """All is content from here on; all before too, if no call has gone out."""
        self._is_content = True
        return [Content(self._call if self._num_calls else self._raw)]


def _read_call(text: str) -> tuple[str, str]:
    """The name and the arguments in JSON of f(a=1, b=[2]). ValueError for what is not just that."""
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise ValueError("not a call with named arguments")
    arguments = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError("arguments without a name")
        arguments[keyword.arg] = ast.literal_eval(keyword.value)
    return ast.unparse(call.func), json_text(arguments)
