"""The content blocks of a reply of /v1/messages: the events that write them, and what those come to."""

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import orjson

from vllm_obs.server.message_reader import Reasoning
from vllm_obs.server.tool_calls.events import CallDelta, Event

Fields = dict[str, Any]

DELTA_OF = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}
"""The type of the deltas of a block, and the field of them that holds its next characters."""


class BlockWriter:
    """Turns the parts of one message into events: a block is begun, gets its text, and is over before the next.

    A message without anything gets one block of empty text, since clients read the first one.
    """

    def __init__(self, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._events: list[Fields] = []
        self._texts: list[str] = []
        self._kind = ""
        self._call = -1
        self._index = -1

    @property
    def has_calls(self) -> bool:
        """Whether a call has begun."""
        return self._call >= 0

    def write(self, parts: Iterable[Reasoning | Event]) -> list[Fields]:
        """The events of the next parts."""
        for part in parts:
            if isinstance(part, CallDelta):
                self._add_call(part)
            elif isinstance(part, Reasoning):
                if self._shows_thinking:
                    self._add("thinking", part.text)
            elif part.text:
                self._add("text", part.text)
        self._flush()
        return self._take()

    def close(self) -> list[Fields]:
        """The events at the end of the message."""
        if self._index < 0:
            self._begin("text")
        self._end()
        return self._take()

    def _add(self, kind: str, text: str) -> None:
        if self._kind != kind:
            self._begin(kind)
        self._texts.append(text)

    def _add_call(self, part: CallDelta) -> None:
        if part.call != self._call:
            self._begin("tool_use", part.name)
            self._call = part.call
        assert self._kind == "tool_use", "a call went on after text that followed it"
        self._texts.append(part.arguments)

    def _begin(self, kind: str, name: str = "") -> None:
        self._end()
        self._index += 1
        self._kind = kind
        block = new_block(kind, name)
        self._events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _end(self) -> None:
        if not self._kind:
            return
        self._flush()
        if self._kind == "thinking":
            self._tell_delta({"type": "signature_delta", "signature": ""})
        self._events.append({"type": "content_block_stop", "index": self._index})
        self._kind = ""

    def _flush(self) -> None:
        text = "".join(self._texts)
        self._texts.clear()
        if text:
            kind, name = DELTA_OF[self._kind]
            self._tell_delta({"type": kind, name: text})

    def _tell_delta(self, delta: Fields) -> None:
        self._events.append({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _take(self) -> list[Fields]:
        events, self._events = self._events, []
        return events


def new_block(kind: str, name: str = "") -> Fields:
    """A block of this type without anything in it yet; `name` is of the tool it uses."""
    match kind:
        case "text":
            return {"type": kind, "text": "", "citations": None}
        case "thinking":
            return {"type": kind, "thinking": "", "signature": ""}
    block_id = f"toolu_{uuid.uuid4().hex[:24]}"
    return {"type": kind, "id": block_id, "name": name, "input": {}, "caller": {"type": "direct"}}


def content_of(events: Sequence[Fields]) -> list[Fields]:
    """The blocks that the events of a whole message come to."""
    blocks: list[Fields] = []
    texts: list[str] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"])
                texts.clear()
            case "content_block_delta":
                texts.append(event["delta"].get(DELTA_OF[blocks[-1]["type"]][1], ""))
            case "content_block_stop":
                _fill(blocks[-1], "".join(texts))
    return blocks


def _fill(block: Fields, text: str) -> None:
    if block["type"] == "tool_use":
        block["input"] = input_of(text)
    else:
        block[block["type"]] = text


def input_of(arguments: str) -> Fields:
    """The input of a tool as an object; empty where the arguments are none, because they were cut off."""
    try:
        value = orjson.loads(arguments or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
