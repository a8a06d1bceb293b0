"""The form of Qwen3-Coder: <tool_call><function=f><parameter=a>1</parameter></function></tool_call>."""

import json
from collections.abc import Sequence
from typing import Any

from vllm_obs.server.tool_calls.events import CallDelta, Content, Event, Tool
from vllm_obs.server.tool_calls.held_text import HeldText
from vllm_obs.server.tool_calls.json_text import json_text

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"

MAX_ALTERNATIVES_DEPTH = 4


class Qwen3CoderParser:
    """Values are text; what a parameter's schema wants to be a number, a truth value or JSON becomes that.

    A <tool_call> in which no function has a name is content, the marks included; a function without a name behind
    one that has one is content too.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool.properties for tool in tools}
        self._held = HeldText(_CALL, _FUNCTION)
        self._text = ""
        self._is_in_call = self._is_in_function = False
        self._opening = ""
        self._whole = ""
        self._has_called = False
        self._properties: Any = {}
        self._num_parameters = 0
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        while text:
            if not self._is_in_call:
                content, marker, text = self._held.feed(text)
                events += content
                if marker is None:
                    continue
                self._is_in_call, self._has_called, self._whole = True, False, ""
                self._opening = marker if marker == _CALL else ""
                text = text if marker == _CALL else _FUNCTION + text
            self._text += text
            self._whole += "" if self._has_called else text
            text = ""
            events += self._read()
            if not self._is_in_call:
                text, self._text = self._text, ""
        return events

    def finish(self) -> list[Event]:
        """What was held back: also a call without a function, and text behind the last function."""
        if not self._is_in_call:
            return self._held.finish()
        if not self._has_called:
            return self._give_up("")
        is_text = not self._is_in_function and not _END_CALL.startswith(self._text.strip())
        return [Content(self._text)] if is_text else []

    def _read(self) -> list[Event]:
        """As many whole tags as there are."""
        events: list[Event] = []
        while (found := self._next_tag()) is not None:
            events += found
            if not self._is_in_call:
                break
        return events

    def _next_tag(self) -> list[Event] | None:
        """What the next whole tag brings; None where there is none yet."""
        text = self._text.lstrip()
        if not self._is_in_function:
            return self._next_outside(text)
        if text.startswith(_PARAMETER):
            return self._next_parameter(text)
        if text.startswith(_END_FUNCTION):
            self._text, self._is_in_function = text[len(_END_FUNCTION) :], False
            end = "}" if self._num_parameters else "{}"
            self._num_calls += 1
            return [CallDelta(self._num_calls - 1, arguments=end)]
        return self._skip(text, (_PARAMETER, _END_FUNCTION))

    def _next_outside(self, text: str) -> list[Event] | None:
        if text.startswith(_FUNCTION) and ">" in text:
            name, _, rest = text[len(_FUNCTION) :].partition(">")
            name = name.strip().strip("\"'")
            if not name:
                return self._end_at_unnamed(rest)
            self._text = rest
            self._is_in_function, self._has_called, self._num_parameters = True, True, 0
            self._properties = self._tools.get(name, {})
            return [CallDelta(self._num_calls, name)]
        if text.startswith(_END_CALL):
            self._text = text[len(_END_CALL) :]
            if not self._has_called:
                return self._give_up(self._text)
            self._is_in_call = False
            return []
        return self._skip(text, (_FUNCTION, _END_CALL))

    def _end_at_unnamed(self, rest: str) -> list[Event]:
        """A function without a name: it is content, and what follows is looked at anew."""
        behind_call, self._text = self._text.removesuffix(rest), rest
        if not self._has_called:
            return self._give_up(rest)
        self._is_in_call = False
        return [Content(behind_call)]

    def _give_up(self, rest: str) -> list[Event]:
        """What came since the marker, but for this rest, is content."""
        self._is_in_call = False
        text = self._whole[: len(self._whole) - len(rest)]
        return [*self._held.not_found(self._opening), Content(text)]

    def _next_parameter(self, text: str) -> list[Event] | None:
        end = text.find(_END_PARAMETER)
        if end < 0 or ">" not in text[:end]:
            return None
        name, _, value = text[len(_PARAMETER) : end].partition(">")
        self._text = text[end + len(_END_PARAMETER) :]
        name = name.strip().strip("\"'")
        value = value.removeprefix("\n").removesuffix("\n")
        written = _written(value, self._properties.get(name))
        opening = ", " if self._num_parameters else "{"
        self._num_parameters += 1
        return [CallDelta(self._num_calls, arguments=f"{opening}{json_text(name)}: {written}")]

    def _skip(self, text: str, tags: tuple[str, ...]) -> list[Event] | None:
        """Drop what stands between tags, up to the next one that may begin here."""
        at = min((place for place in (text.find(tag) for tag in tags) if place > 0), default=-1)
        if at < 0:
            return None
        self._text = text[at:]
        return []


def _written(value: str, schema: Any) -> str:
    """The value in JSON, as its schema wants it; the text itself where it cannot be that."""
    try:
        return json_text(_typed(value, _kinds_of(schema)))
    except (ValueError, RecursionError):
        return json_text(value)


def _typed(value: str, kinds: set[str]) -> Any:
    """The value as one of these types. ValueError or RecursionError where it is no JSON."""
    word = value.strip().lower()
    if "null" in kinds and value.strip() in ("null", "None"):
        return None
    if "string" in kinds or not kinds:
        return value
    if "boolean" in kinds and word in ("true", "false"):
        return word == "true"
    read = json.loads(value)
    # What a schema refers to may be a text: only lists and objects are surely none.
    return read if isinstance(read, dict | list) or kinds - {"$ref", "null"} else value


def _kinds_of(schema: Any, depth: int = 0) -> set[str]:
    """The types that a schema names, itself or in its alternatives; $ref for one that it only refers to."""
    if not isinstance(schema, dict) or depth > MAX_ALTERNATIVES_DEPTH:
        return set()
    named = schema.get("type")
    kinds = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    kinds |= {"$ref"} if not kinds and "$ref" in schema else set()
    for keyword in ("anyOf", "oneOf", "allOf"):
        alternatives = schema.get(keyword)
        for part in alternatives if isinstance(alternatives, list) else ():
            kinds |= _kinds_of(part, depth + 1)
    return kinds
