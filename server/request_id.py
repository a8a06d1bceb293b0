"""Request ids: ours for the machine, the client's as a label for people."""

import uuid
from collections.abc import Iterable
from contextvars import ContextVar
from typing import Any

MAX_LABEL_CHARS = 128

http_id: ContextVar[str] = ContextVar("http_id", default="")
"""Our id of the request that is being served, for whoever is called on its way without being told."""


def new_id() -> str:
    """16 random hexadecimal digits."""
    return uuid.uuid4().hex[:16]


def client_label(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """The first X-Request-Id header, printable ASCII only and at most 128 characters; "" when there is none."""
    return next((_clean(value) for name, value in headers if name == b"x-request-id"), "")


def adopt_label(state: dict[str, Any], asked: str | None) -> None:
    """Take what a body calls its request as its label, cleaned as a header is, unless a header has named it."""
    label = _clean(asked.encode()) if asked is not None else ""
    if label and state["label"] == state["request_id"]:
        state["label"] = label


def _clean(label: bytes) -> str:
    kept = bytes(byte for byte in label[: 4 * MAX_LABEL_CHARS] if 33 <= byte <= 126)
    return kept.decode()[:MAX_LABEL_CHARS]
