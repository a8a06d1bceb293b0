"""The form of Qwen3-Coder: <tool_call><function=f><parameter=a>1</parameter></function></tool_call>."""

import json
from collections.abc import Sequence
from typing import Any

from vllm_obs.server.tool_calls.events import CallDelta, Event, Tool
from vllm_obs.server.tool_calls.held_text import HeldText

_CALL, _END_CALL = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"


class Qwen3CoderParser:
    """Values are text; what a parameter's schema wants to be a number, a truth value or JSON becomes that."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.name: tool.properties for tool in tools}
        self._held = HeldText(_CALL, _FUNCTION)
        self._text = ""
        self._is_in_call = self._is_in_function = False
        self._properties: Any = {}
        self._num_parameters = 0
        self._num_calls = 0

    def feed(self, text: str) -> list[Event]:
        """The events of the next characters."""
        events: list[Event] = []
        while text:
            if self._is_in_call or self._is_in_function:
                self._text, text = self._text + text, ""
            else:
                content, marker, text = self._held.feed(text)
                events += content
                self._is_in_call = marker == _CALL
                if marker == _FUNCTION:
                    self._is_in_call, text = True, _FUNCTION + text
                if not text:
                    continue
                self._text, text = text, ""
            events += self._read()
            if not self._is_in_call and not self._is_in_function:
                text, self._text = self._text, ""
        return events

    def finish(self) -> list[Event]:
        """What was held back."""
        return self._held.finish()

    def _read(self) -> list[Event]:
        """As many whole tags as there are."""
        events: list[Event] = []
        while (found := self._next_tag()) is not None:
            events += found
            if not self._is_in_call and not self._is_in_function:
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
            name, _, self._text = text[len(_FUNCTION) :].partition(">")
            name = name.strip().strip("\"'")
            self._is_in_function, self._num_parameters = True, 0
            self._properties = self._tools.get(name, {})
            return [CallDelta(self._num_calls, name)]
        if text.startswith(_END_CALL):
            self._text, self._is_in_call = text[len(_END_CALL) :], False
            return []
        return self._skip(text, (_FUNCTION, _END_CALL))

    def _next_parameter(self, text: str) -> list[Event] | None:
        end = text.find(_END_PARAMETER)
        if end < 0 or ">" not in text[:end]:
            return None
        name, _, value = text[len(_PARAMETER) : end].partition(">")
        self._text = text[end + len(_END_PARAMETER) :]
        name = name.strip().strip("\"'")
        value = value.removeprefix("\n").removesuffix("\n")
        written = json.dumps(_typed(value, self._properties.get(name)), ensure_ascii=False)
        opening = ", " if self._num_parameters else "{"
        self._num_parameters += 1
        return [
            CallDelta(self._num_calls, arguments=f"{opening}{json.dumps(name, ensure_ascii=False)}: {written}")
        ]

    def _skip(self, text: str, tags: tuple[str, ...]) -> list[Event] | None:
        """Drop what stands between tags, up to the next one that may begin here."""
        at = min((place for place in (text.find(tag) for tag in tags) if place > 0), default=-1)
        if at < 0:
            return None
        self._text = text[at:]
        return []


def _typed(value: str, schema: Any) -> Any:
    """The value as its schema wants it; the text itself where it cannot be that."""
    kinds = schema.get("type") if isinstance(schema, dict) else None
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if "null" in kinds and value.strip() == "null":
        return None
    if "string" in kinds or kinds == [None]:
        return value
    try:
        parsed = json.loads(value.strip().lower() if "boolean" in kinds else value)
    except ValueError:
        return value
    return parsed
