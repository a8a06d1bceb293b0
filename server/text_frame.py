"""TextFrame: an event in which only a text is new, so that the rest of it is written once."""

import secrets
from collections.abc import Callable

import orjson

_MARK = secrets.token_hex(16)
"""Nobody can guess it and put it into an event."""
_MARK_JSON = orjson.dumps(_MARK)


class TextFrame:
    """What `write(text)` gives, in a fraction of the time; it must hold the text once, as a JSON string."""

    __slots__ = ("_head", "_tail")

    def __init__(self, write: Callable[[str], bytes]) -> None:
        self._head, _, self._tail = write(_MARK).partition(_MARK_JSON)

    def __call__(self, text: str) -> bytes:
        """The event with this text."""
        return self._head + orjson.dumps(text) + self._tail
