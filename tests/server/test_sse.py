"""A stream in which nothing happens says that it lives, again and again, and no more than that."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from in_loop import in_loop
from starlette.types import Message

from vllm_obs.server import sse
from vllm_obs.server.sse import COMMENT, EventStream


class Source:
    """Whose stream it is."""

    request_id = "a"

    async def aclose(self) -> None:
        """Nothing is left to stop."""


async def sent_by(frames: AsyncGenerator[bytes, None]) -> list[bytes]:
    """The parts of the body of a stream whose client stays to its end."""
    parts: list[bytes] = []

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def send(message: Message) -> None:
        parts.append(message.get("body", b"head"))

    await EventStream(frames, Source())({"type": "http"}, receive, send)
    return parts


@pytest.fixture(autouse=True)
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "COMMENT_AFTER_SECONDS", 0.02)


@in_loop
async def test_a_silent_stream_comments_as_often_as_it_is_silent_for_so_long() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        yield b"first"
        await asyncio.sleep(0.2)
        yield b"last"

    head, first, *comments, last, end = await sent_by(frames())
    assert (head, first, last, end) == (b"head", b"first", b"last", b"")
    assert set(comments) == {COMMENT}
    assert len(comments) >= 2


@in_loop
async def test_a_stream_that_says_something_has_no_comments() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        for _ in range(3):
            yield b"event"

    assert await sent_by(frames()) == [b"head", b"event", b"event", b"event", b""]


@in_loop
async def test_nothing_is_left_behind() -> None:
    async def frames() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.05)
        yield b"event"

    before = asyncio.all_tasks()
    await sent_by(frames())
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
