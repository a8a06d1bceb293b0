"""A request's deadline: by header or flag, in the queue and while it runs, and never sent after it."""

import asyncio
import time
from typing import Any

import pytest
from fake_engine import FakeEngine, Script
from http_app import Served, served
from in_loop import in_loop

from vllm_obs.engine.messages import EngineCoreRequest, FinishReason
from vllm_obs.server.config import ServerConfig
from vllm_obs.server.deadline import deadline_of
from vllm_obs.server.errors import ApiError
from vllm_obs.telemetry.records import RequestEnded, RequestSubmitted

TEXT = "/v1/completions"
BODY = {"prompt": "Hi", "max_tokens": 3}
NAME = "x-request-timeout"


def error_of(reply: Any) -> tuple[int, str, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["reason"], error["param"]


@pytest.mark.parametrize(
    ("values", "flag", "seconds"),
    [
        ([], None, None),
        ([b"2"], None, 2.0),
        ([b"2.5"], 9.0, 2.5),
        ([b".5"], None, 0.5),
        ([b"90"], 9.0, 9.0),
        ([], 9.0, 9.0),
        ([b"3", b"2"], None, 2.0),
    ],
)
def test_the_smaller_of_header_and_flag_wins(
    values: list[bytes], flag: float | None, seconds: float | None
) -> None:
    deadline = deadline_of([(b"x-request-timeout", value) for value in values], 1000, flag)
    assert (None if deadline is None else (deadline.seconds, deadline.at)) == (
        None if seconds is None else (seconds, 1000 + int(seconds * 1e9))
    )


@pytest.mark.parametrize(
    "value",
    [b"", b"0", b"-1", b"nan", b"inf", b"1e999", b"soon", b"5s", b"86401", b"1" * 10_000, b"\xb2", b"1_0", b"1e1",
     b"+5", b" 5", b"0x5", b"5,5", b".", "５".encode()],
)  # fmt: skip
def test_a_header_that_is_no_time_is_refused(value: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        deadline_of([(b"x-request-timeout", value)], 0, None)
    assert (caught.value.status, caught.value.param) == (400, "X-Request-Timeout")
    assert len(caught.value.body()) < 400


@in_loop
async def test_a_bad_header_is_a_400_before_anything_is_done() -> None:
    async with served(FakeEngine(lambda request: [30])) as app:
        reply = await app.post(TEXT, BODY, **{NAME: "never"})
        assert error_of(reply) == (400, "invalid_value", "X-Request-Timeout")
        assert app.engine.added == []


@in_loop
async def test_whoever_waits_longer_than_its_deadline_gets_a_504_and_is_aborted() -> None:
    engine = FakeEngine(lambda request: [30] * 3)
    engine.go.clear()
    async with served(engine) as app:
        begun_at = time.monotonic()
        reply = await app.post(TEXT, {**BODY, "n": 2}, **{NAME: "0.2"})
        assert error_of(reply) == (504, "timeout", None)
        assert reply.json()["error"]["message"] == "the request was not finished within its timeout of 0.2 s"
        assert 0.2 <= time.monotonic() - begun_at < 0.2 + 3 * 0.5
        assert sorted(engine.aborted) == sorted(request.request_id for request in engine.added)
        assert engine.num_running == app.llm.num_in_flight == app.api.num_open == 0
        ended = app.recorder.of(RequestEnded)
        assert [(fact.finish_reason, fact.error) for fact in ended] == [(FinishReason.ERROR.label, "timeout")] * 2


@in_loop
async def test_a_stream_ends_at_its_deadline_with_an_error_event() -> None:
    async with served(FakeEngine(lambda request: [30] * 1000, seconds_a_token=0.01)) as app:
        reply = await app.post(TEXT, {**BODY, "max_tokens": 500, "stream": True}, **{NAME: "0.3"})
        *events, last = [line for line in reply.text.splitlines() if line]
        assert reply.status_code == 200
        assert len(events) > 1
        assert '"reason":"timeout"' in last
        assert '"code":504' in last
        assert "[DONE]" not in reply.text
        assert app.engine.num_running == 0


@in_loop
async def test_the_flag_holds_for_everybody() -> None:
    engine = FakeEngine(lambda request: [30] * 3)
    engine.go.clear()
    async with served(engine, ServerConfig(request_timeout=0.1)) as app:
        assert error_of(await app.post(TEXT, BODY, **{NAME: "60"})) == (504, "timeout", None)


@in_loop
async def test_who_is_too_late_is_never_sent() -> None:
    async with served(FakeEngine(lambda request: [30] * 3)) as app:
        reply = await app.post(TEXT, BODY, **{NAME: "0.000001"})
        assert error_of(reply) == (504, "timeout", None)
        assert app.engine.added == []
        assert app.recorder.of(RequestSubmitted) == []


@pytest.mark.parametrize("prompts", ["Hi", ["Hi", "Ho", "Ha"]])
@in_loop
async def test_a_deadline_that_passes_while_the_last_prompt_is_sent_is_kept(prompts: Any) -> None:
    engine = SlowToTake(lambda request: [30] * 3, num_at_once=1 if isinstance(prompts, str) else 3)
    engine.go.clear()
    async with served(engine) as app:
        async with asyncio.timeout(10):
            reply = await app.post(TEXT, {**BODY, "prompt": prompts}, **{NAME: "0.1"})
        assert error_of(reply) == (504, "timeout", None)
        assert sorted(engine.aborted) == sorted(request.request_id for request in engine.added)
        assert engine.num_running == app.llm.num_in_flight == 0


@in_loop
async def test_who_is_in_time_is_not_disturbed() -> None:
    async with served(FakeEngine(lambda request: [30] * 3)) as app:
        replies = await asyncio.gather(*(app.post(TEXT, BODY, **{NAME: "5"}) for _ in range(20)))
        assert {reply.status_code for reply in replies} == {200}
        await _later(app)
        assert app.engine.aborted == []


class SlowToTake(FakeEngine):
    """Takes so many sequences at once, and the last of them not before its deadline has passed."""

    def __init__(self, script: Script, num_at_once: int) -> None:
        super().__init__(script)
        self._num_at_once = num_at_once

    async def add_request(self, request: EngineCoreRequest) -> None:
        self._num_at_once -= 1
        if not self._num_at_once:
            await asyncio.sleep(0.3)
        await super().add_request(request)


async def _later(app: Served) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
