"""MessageReader: one choice's text as the parts of an assistant's message."""

import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from vllm_obs.server.reasoning import ThinkParser
from vllm_obs.server.tool_calls.events import CallDelta, Content, Event, ToolParser


class Reasoning(NamedTuple):
    """Text that the model thinks, before its answer."""

    text: str


class MessageDelta(NamedTuple):
    """What some text brought to a message. `calls` are as a stream's chunks have them."""

    content: str = ""
    reasoning: str = ""
    calls: Sequence[dict[str, Any]] = ()

    def for_chunk(self) -> dict[str, Any]:
        """The `delta` of a chunk; empty where nothing is new."""
        delta: dict[str, Any] = {}
        if self.reasoning:
            delta["reasoning"] = self.reasoning
        if self.content:
            delta["content"] = self.content
        if self.calls:
            delta["tool_calls"] = list(self.calls)
        return delta


class MessageReader:
    """Reads one choice: first what the model thinks, then its content and its calls."""

    def __init__(self, thoughts: ThinkParser | None = None, tools: ToolParser | None = None) -> None:
        self._thoughts = thoughts
        self._tools = tools
        self._ids: dict[int, str] = {}

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return bool(self._ids)

    def feed(self, text: str, is_last: bool = False) -> MessageDelta:
        """What the next characters bring; with `is_last` what was held back too."""
        parts = self.parts(text, is_last)
        content = "".join(part.text for part in parts if isinstance(part, Content))
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        return MessageDelta(content, reasoning, self._calls(parts))

    def parts(self, text: str, is_last: bool = False) -> list[Reasoning | Event]:
        """What the next characters bring, in its order."""
        reasoning, answer = self._think(text, is_last)
        parts: list[Reasoning | Event] = [Reasoning(reasoning)] if reasoning else []
        if self._tools is not None:
            parts += self._tools.feed(answer)
            parts += self._tools.finish() if is_last else []
        elif answer:
            parts.append(Content(answer))
        return parts

    def _think(self, text: str, is_last: bool) -> tuple[str, str]:
        if self._thoughts is None:
            return "", text
        thought = self._thoughts.feed(text)
        if not is_last:
            return thought
        rest = self._thoughts.finish()
        return thought.reasoning + rest.reasoning, thought.answer + rest.answer

    def _calls(self, events: Sequence[Reasoning | Event]) -> list[dict[str, Any]]:
        """An entry for each call that got on: with its id and name in its first, and its next arguments."""
        entries: dict[int, dict[str, Any]] = {}
        for event in events:
            if isinstance(event, CallDelta):
                entry = entries.setdefault(event.call, self._entry(event.call))
                function = entry["function"]
                if event.name:
                    function["name"] = event.name
                function["arguments"] += event.arguments
        return list(entries.values())

    def _entry(self, call: int) -> dict[str, Any]:
        entry: dict[str, Any] = {"index": call}
        if call not in self._ids:
            self._ids[call] = f"call_{uuid.uuid4().hex[:24]}"
            entry |= {"id": self._ids[call], "type": "function"}
        return entry | {"function": {"arguments": ""}}


def whole_calls(calls: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a whole message: as in a stream's first chunks, without their numbers."""
    return [
        {
            "id": call["id"],
            "type": call["type"],
            "function": {"name": call["function"]["name"], "arguments": call["function"]["arguments"]},
        }
        for call in calls
    ]
