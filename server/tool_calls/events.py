"""What a parser makes of a model's text: plain content, and tool calls piece by piece."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Tool(NamedTuple):
    """A function the model may call. `properties` are the JSON Schemas of its parameters, by name."""

    name: str
    properties: Mapping[str, Any]


class CallDelta(NamedTuple):
    """More of call number `call`: its name (only in its first delta), and the next characters of its arguments."""

    call: int
    name: str = ""
    arguments: str = ""


class Content(NamedTuple):
    """Text that is no call."""

    text: str


Event = Content | CallDelta


class ToolParser(Protocol):
    """Reads one reply. Whatever the pieces it is fed in, the events joined are the same."""

    def feed(self, text: str) -> list[Event]:
        """What the next characters bring; what may still become a call is held back."""

    def finish(self) -> list[Event]:
        """The text is over: what was held back, and the ends of calls that were cut off."""


class ParsedCall(NamedTuple):
    """A whole call."""

    name: str
    arguments: str


class ParsedReply(NamedTuple):
    """A whole reply's content and calls."""

    content: str
    calls: list[ParsedCall]


def joined(events: Sequence[Event]) -> ParsedReply:
    """What a reply's events come to."""
    content = "".join(event.text for event in events if isinstance(event, Content))
    calls: dict[int, list[CallDelta]] = {}
    for event in events:
        if isinstance(event, CallDelta):
            calls.setdefault(event.call, []).append(event)
    parsed = [
        ParsedCall("".join(delta.name for delta in deltas), "".join(delta.arguments for delta in deltas))
        for _, deltas in sorted(calls.items())
    ]
    return ParsedReply(content, parsed)
