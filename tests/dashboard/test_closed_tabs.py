"""What fails in a WebSocket is told unless its viewer has left."""

import asyncio
import contextlib

import pytest
from starlette.types import Message, Receive, Scope, Send

from vllm_obs.dashboard.closed_tabs import ClosedTabs

NOTHING: Message = {"type": "websocket.receive", "bytes": b""}


async def streamlit(scope: Scope, receive: Receive, send: Send) -> None:
    """Sends in vain, then reads on."""
    with contextlib.suppress(OSError):
        await send({"type": "websocket.send", "bytes": b"figures"})
    raise RuntimeError("WebSocket is not connected")


async def nothing_comes() -> Message:
    return NOTHING


async def reaches(message: Message) -> None:
    """A tab that is open."""


async def fails(message: Message) -> None:
    """A tab that was closed."""
    raise ConnectionResetError


def run(kind: str, send: Send) -> None:
    asyncio.run(ClosedTabs(streamlit)({"type": kind}, nothing_comes, send))


def test_viewer_that_left_ends_its_socket_without_an_error() -> None:
    run("websocket", fails)


@pytest.mark.parametrize(("kind", "send"), [("websocket", reaches), ("http", fails)])
def test_any_other_failure_is_told(kind: str, send: Send) -> None:
    with pytest.raises(RuntimeError, match="not connected"):
        run(kind, send)
