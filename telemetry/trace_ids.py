"""The ids of traces and spans, in the W3C form: read from a caller, drawn anew, or derived from what they name."""

import re
import secrets
from hashlib import blake2b
from typing import NamedTuple

NO_SPAN = 0
"""The parent's span id in a trace parent that has a trace and no parent; written as zeros."""

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_INVALID_VERSION = b"ff"
_FIRST_VERSION = b"00"
_SAMPLED = 1


class TraceParent(NamedTuple):
    """A trace, the span in it that is the parent (`NO_SPAN` for none), and whether the caller samples it."""

    trace_id: int
    span_id: int
    is_sampled: bool

    def __str__(self) -> str:
        """As the header is written."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.is_sampled):02x}"

    @property
    def trace_hex(self) -> str:
        """The trace id as people see it: 32 hexadecimal digits."""
        return f"{self.trace_id:032x}"


def parse_traceparent(header: bytes) -> TraceParent | None:
    """The trace parent in a W3C header; None for one that is malformed, which is to be ignored.

    Later versions than 00 may have more at their end, which is not read.
    """
    found = _TRACEPARENT.fullmatch(header.strip(b" \t"))
    if found is None:
        return None
    version, trace_id, span_id, flags, rest = found.groups()
    if version == _INVALID_VERSION or (version == _FIRST_VERSION and rest is not None):
        return None
    parent = TraceParent(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return parent if parent.trace_id and parent.span_id else None


def new_trace_id() -> int:
    """128 random bits, never 0."""
    return secrets.randbits(128) or 1


def span_id(run: str, kind: str, number: int | str) -> int:
    """The 64-bit id, never 0, of what is `number` among the things of its kind in a run.

    Whoever knows the three names the same span, without having talked to anybody.
    """
    digest = blake2b(f"{run}\0{kind}\0{number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") or 1
