"""JsonCall: reads one call written as a JSON object, and hands its arguments on while they are being written."""

import json
from enum import Enum

from vllm_obs.server.tool_calls.events import CallDelta
from vllm_obs.server.tool_calls.json_text import escaped, replaced

NAME_KEYS = ("name",)
ARGUMENTS_KEYS = ("arguments", "parameters")
_OPENING, _CLOSING = "{[", "}]"


class Place(Enum):
    """Where in the object the next character is."""

    BEFORE = "before"
    KEY = "key"
    COLON = "colon"
    VALUE = "value"
    NEXT = "next"
    OVER = "over"
    BROKEN = "broken"


class JsonValue:
    """One JSON value, character by character; `is_over` once it is whole. A number ends before what follows it."""

    def __init__(self) -> None:
        self.text = ""
        self.is_over = False
        self._depth = 0
        self._in_string = self._is_escaped = False

    def feed(self, char: str) -> bool:
        """Take a character, or tell that it belongs to what comes after the value."""
        if not self._depth and not self._in_string and self.text and char in ",}] \t\r\n":
            self.is_over = True
            return False
        self.text += char
        if self._in_string:
            self._feed_string(char)
        elif char == '"':
            self._in_string = True
        elif char in _OPENING:
            self._depth += 1
        elif char in _CLOSING:
            self._depth -= 1
            self.is_over = self._depth <= 0
        return True

    def _feed_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            self.is_over = self._depth == 0


class JsonCall:
    """A call from its opening brace on. Arguments go out as they are spelled, once the name is known.

    Arguments that are a string of JSON (some models quote them) go out unquoted when they are whole.
    """

    def __init__(self, index: int) -> None:
        self.place = Place.BEFORE
        self.name = ""
        self._index = index
        self._key = ""
        self._value = JsonValue()
        self._num_told = 0
        self._arguments: str | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more belongs to it."""
        return self.place in (Place.OVER, Place.BROKEN)

    @property
    def has_arguments(self) -> bool:
        """Whether its arguments have begun, or are known."""
        return self._arguments is not None or (self.place is Place.VALUE and self._key in ARGUMENTS_KEYS)

    @property
    def is_call(self) -> bool:
        """Whether it has what makes an object a call: a name and arguments."""
        return bool(self.name) and self.has_arguments

    def feed(self, char: str) -> list[CallDelta]:
        """Take the next character."""
        if self.place is Place.VALUE:
            return self._feed_value(char)
        if char.isspace() and not (self.place is Place.KEY and self._value.text):
            return []
        if self.place is Place.BEFORE and char == "{":
            self._begin_key()
        elif self.place is Place.KEY and (char == '"' or self._value.text):
            self._feed_key(char)
        elif self.place is Place.COLON and char == ":":
            self.place, self._value = Place.VALUE, JsonValue()
        elif self.place is Place.NEXT and char == ",":
            self._begin_key()
        elif self.place in (Place.NEXT, Place.KEY) and char == "}":
            return self._end()
        else:
            self.place = Place.BROKEN
        return []

    def _begin_key(self) -> None:
        self.place, self._value = Place.KEY, JsonValue()

    def _feed_key(self, char: str) -> None:
        self._value.feed(char)
        if self._value.is_over:
            self._key, self.place = _unquoted(self._value.text), Place.COLON

    def _feed_value(self, char: str) -> list[CallDelta]:
        if char.isspace() and not self._value.text:
            return []
        taken = self._value.feed(char)
        deltas = self._tell(self._value.text) if self._is_streamed else []
        if self._value.is_over:
            deltas += self._end_value()
            self.place = Place.NEXT
            if not taken:
                deltas += self.feed(char)
        return deltas

    @property
    def _is_streamed(self) -> bool:
        is_arguments = self._key in ARGUMENTS_KEYS and self._arguments is None
        return is_arguments and bool(self.name) and not self._value.text.startswith('"')

    def _end_value(self) -> list[CallDelta]:
        text = self._value.text
        if self._key in NAME_KEYS and not self.name:
            self.name = replaced(_unquoted(text))
            if not self.name:
                self.place = Place.BROKEN
                return []
            first = [CallDelta(self._index, self.name)]
            return first + (self._tell(self._arguments) if self._arguments is not None else [])
        if self._key in ARGUMENTS_KEYS and self._arguments is None:
            self._arguments = (
                escaped(_unquoted(text)) if text.startswith('"') else "{}" if text == "null" else text
            )
            return self._tell(self._arguments) if self.name else []
        return []

    def _tell(self, arguments: str) -> list[CallDelta]:
        """What of the arguments has not gone out yet. `null` is held back until it is known to be more."""
        if arguments and "null".startswith(arguments):
            return []
        told, self._num_told = self._num_told, max(self._num_told, len(arguments))
        return [CallDelta(self._index, arguments=arguments[told:])] if len(arguments) > told else []

    def _end(self) -> list[CallDelta]:
        self.place = Place.OVER if self.name else Place.BROKEN
        if self.name and self._arguments is None:
            return self._tell("{}")
        return []


def _unquoted(text: str) -> str:
    """The text of a JSON string; empty for anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
