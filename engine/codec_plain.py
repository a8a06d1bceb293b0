"""Plain values out of msgpack bytes from anywhere: bounded, without extensions, and WireError for the rest."""

from math import isfinite
from typing import Any, Literal

import msgpack

from vllm_obs.engine.errors import VllmObsError

WireReason = Literal["parts", "decode", "version", "type", "size"]
"""Why a message was refused: wrong frames, not msgpack, another version, wrong fields, over a limit."""

DropReason = Literal[
    "parts",
    "decode",
    "version",
    "type",
    "size",
    "generation",
    "client",
    "stranger",
    "duplicate",
    "unknown",
    "unread",
]
"""Why a message was dropped: it was refused; it is of another engine's life, or of another client; it came from a
process that has no business here; its sequence lives already, or has ended; its reader did not read."""

MAX_ITEMS = 1 << 16
"""Entries of one list or map."""
MAX_TEXT_BYTES = 1 << 20
"""Bytes of one string."""
MAX_DEPTH = 16
"""Nesting of a plain value (the arguments and the answer of a utility call)."""


class WireError(VllmObsError):
    """A message that was refused, for a reason from a closed set.

    `request_id` and `client_index` name the owner where the message still gave them away.
    """

    def __init__(self, reason: WireReason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason: WireReason = reason
        self.request_id: str | None = None
        self.client_index: int | None = None


def unpack(payload: bytes | memoryview) -> Any:
    """The plain value in a msgpack payload, or WireError; memory is bounded by the payload's own length."""
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            strict_map_key=True,
            ext_hook=_refuse_extension,
            max_str_len=MAX_TEXT_BYTES,
            max_array_len=min(len(payload), MAX_ITEMS),
            max_map_len=min(len(payload), MAX_ITEMS),
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise WireError("decode", type(error).__name__) from None


def _refuse_extension(code: int, data: bytes) -> Any:
    raise ValueError("no extension types on this wire")


def read_plain(value: Any, depth: int = MAX_DEPTH) -> Any:
    """The value itself when it is made of None, bool, int, finite float, str, bytes, list and str-keyed dict."""
    if depth == 0:
        raise WireError("size", f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, list):
        for entry in value:
            read_plain(entry, depth - 1)
    elif isinstance(value, dict):
        for key, entry in value.items():
            if type(key) is not str:
                raise WireError("type", "expected keys of text")
            read_plain(entry, depth - 1)
    elif isinstance(value, float) and not isfinite(value):
        raise WireError("type", "expected a finite number")
    elif not isinstance(value, bool | int | float | str | bytes | None):
        raise WireError("type", "expected a plain value")
    return value
