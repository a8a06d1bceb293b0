"""Deadline: until when a request is worth any work, by its client's header or the server's flag."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

from vllm_obs.server.errors import ApiError, shown

HEADER = "X-Request-Timeout"
MAX_SECONDS = 86_400.0
MAX_CHARS = 32
_DECIMAL = re.compile(rb"[0-9]+(\.[0-9]*)?|\.[0-9]+")
"""What Python reads as a number besides, such as `1_0`, is more often a slip than meant."""


@dataclass(frozen=True)
class Deadline:
    """`at` is monotonic ns; `seconds` is how long that is after the request's first byte."""

    at: int
    seconds: float

    @property
    def left_seconds(self) -> float:
        """How long it is until then, 0 when it has passed."""
        return max(0, self.at - time.monotonic_ns()) / 1e9

    def passed(self) -> ApiError:
        """What a request is told that was not finished by then: a 504."""
        return ApiError(f"the request was not finished within its timeout of {self.seconds:g} s", "timeout")


def deadline_of(
    headers: Iterable[tuple[bytes, bytes]], received_at: int, most_seconds: float | None
) -> Deadline | None:
    """The earlier of the deadlines that a request's header and the server set; ApiError 400 for a bad header."""
    asked = [value for name, value in headers if name == b"x-request-timeout"]
    lengths = [_seconds(value) for value in asked] + ([most_seconds] if most_seconds is not None else [])
    if not lengths:
        return None
    seconds = min(lengths)
    return Deadline(received_at + int(seconds * 1e9), seconds)


def _seconds(value: bytes) -> float:
    is_decimal = len(value) <= MAX_CHARS and _DECIMAL.fullmatch(value) is not None
    seconds = float(value) if is_decimal else 0.0
    if not 0 < seconds <= MAX_SECONDS:
        text = shown(value[: MAX_CHARS + 1].decode("latin-1"))
        message = (
            f"{HEADER} is {text}, not a number of seconds in decimals, such as 2.5, above 0 and at most "
            f"{MAX_SECONDS:g}"
        )
        raise ApiError(message, "invalid_value", param=HEADER)
    return seconds
