"""The gate under load: 429 in time, before any work, all sequences of a request or none."""

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest
from fake_engine import FakeEngine
from http_app import MODEL, Served, model_config, served
from in_loop import in_loop
from starlette.routing import Route

from vllm_obs.engine.config import VllmConfig
from vllm_obs.engine.frontend.front_queue import MAX_RETRY_SECONDS
from vllm_obs.server.entry import GENERATING
from vllm_obs.server.errors import request_failed
from vllm_obs.telemetry.records import HttpRequestEnded

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BODY = {"prompt": "Hi", "max_tokens": 3}
HI = {"role": "user", "content": "hi"}


def bounded(**limits: int) -> VllmConfig:
    """The default model, of which two sequences run at once."""
    config = model_config()
    return replace(config, scheduler=replace(config.scheduler, max_num_seqs=2, **limits))


def closed_engine() -> FakeEngine:
    """One that makes no token until it is let go."""
    engine = FakeEngine(lambda request: [30] * 3)
    engine.go.clear()
    return engine


def reason_of(reply: Any) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["reason"] if reply.status_code != 200 else ""


async def posting(app: Served, number: int, body: dict[str, Any] = BODY) -> list["asyncio.Task[Any]"]:
    """Requests that are each refused or with the engine."""
    num_before = len(app.engine.added)
    tasks = [asyncio.create_task(app.post(TEXT, body)) for _ in range(number)]
    while sum(task.done() for task in tasks) + len(app.engine.added) - num_before < number:
        await asyncio.sleep(0.001)
    return tasks


@in_loop
async def test_what_neither_runs_nor_may_wait_gets_429_and_the_rest_ends_well() -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=3)) as app:
        tasks = await posting(app, 9)
        assert len(app.engine.added) == 2 + 3
        refused = [task.result() for task in tasks if task.done()]
        assert [reason_of(reply) for reply in refused] == [(429, "overloaded")] * 4
        assert all(1 <= int(reply.headers["retry-after"]) <= MAX_RETRY_SECONDS for reply in refused)
        assert refused[0].json()["error"]["type"] == "RateLimitError"
        app.engine.go.set()
        replies = await asyncio.gather(*tasks)
        assert sum(reply.status_code == 200 for reply in replies) == 5
        assert [reply.status_code for reply in await asyncio.gather(*await posting(app, 5))] == [200] * 5
        assert {fact.reason for fact in app.recorder.of(HttpRequestEnded)} == {"", "overloaded"}


@in_loop
async def test_a_refused_request_is_not_even_read() -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=0)) as app:
        tasks = await posting(app, 2)
        for path in sorted(GENERATING):
            reply = await app.client.post(path, content=b"{nonsense", headers={"content-type": "application/json"})
            assert reason_of(reply) == (429, "overloaded"), path
        for path in ("/v1/models", "/livez"):
            assert (await app.client.get(path)).status_code == 200
        assert (await app.post("/tokenize", {"prompt": "Hi"})).status_code == 200
        assert (await app.post(TEXT + "/render", BODY)).status_code == 200
        app.engine.go.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("body", [{**BODY, "n": 3}, {**BODY, "prompt": ["A", "B", "C"]}])
@in_loop
async def test_several_sequences_are_taken_whole_or_not_at_all(body: dict[str, Any]) -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=2)) as app:
        tasks = await posting(app, 2)
        reply = await app.post(TEXT, body)
        assert reason_of(reply) == (429, "overloaded")
        assert len(app.engine.added) == 2
        app.engine.go.set()
        await asyncio.gather(*tasks)
        assert (await app.post(TEXT, body)).status_code == 200


@in_loop
async def test_more_than_can_ever_run_and_wait_is_a_400() -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=2)) as app:
        reply = await app.post(TEXT, {**BODY, "n": 5})
        assert reason_of(reply) == (400, "too_many_sequences")
        assert reply.json()["error"]["param"] == "n"
        assert app.engine.added == []


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {**BODY, "prompt": ["A"] * 5}, "prompt"),
        (TEXT, {**BODY, "prompt": ["A"] * 5, "n": 2}, "prompt"),
        (TEXT, {**BODY, "prompt": ["A"] * 3, "n": 2}, "n"),
        ("/v1/embeddings", {"input": ["A"] * 5}, "input"),
        ("/v1/rerank", {"query": "Q", "documents": ["A"] * 5}, "documents"),
    ],
)
@in_loop
async def test_the_field_that_asks_for_too_much_is_named(path: str, body: dict[str, Any], param: str) -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=2)) as app:
        reply = await app.post(path, body)
        assert reason_of(reply) == (400, "too_many_sequences")
        assert reply.json()["error"]["param"] == param
        assert app.engine.added == []


@pytest.mark.parametrize(("path", "fields"), [(CHAT, {"max_tokens": 3}), ("/v1/embeddings", {})])
@in_loop
async def test_a_conversation_keeps_its_room_while_it_is_rendered(path: str, fields: dict[str, Any]) -> None:
    config = bounded(max_num_queued_reqs=1)
    refuses = replace(config, model=replace(config.model, chat_template="{{ raise_exception('no') }}"))
    async with served(closed_engine(), config=refuses) as app:
        tasks = await posting(app, 2)
        body = {**fields, "messages": [HI] * 40}  # so many are rendered in a thread
        replies = await asyncio.gather(app.post(path, body), app.post(path, body))
        assert sorted(reply.status_code for reply in replies) == [400, 429]
        app.engine.go.set()
        await asyncio.gather(*tasks)


def test_the_engines_own_word_on_tokens_is_told_as_such() -> None:
    error = request_failed("too_many_queued_tokens")
    assert (error.status, error.reason, error.retry_after_seconds) == (429, "too_many_queued_tokens", 1)
    assert error.message == "the engine cannot take more prompt tokens now"


@in_loop
async def test_prompt_tokens_are_bounded_by_themselves() -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_tokens=100)) as app:
        tasks = await posting(app, 2)
        long = await posting(app, 1, {**BODY, "prompt": [7] * 80})
        assert reason_of(await app.post(TEXT, {**BODY, "prompt": [7] * 30})) == (429, "too_many_queued_tokens")
        tasks += long + await posting(app, 1, {**BODY, "prompt": [7] * 20})
        app.engine.go.set()
        assert {reply.status_code for reply in await asyncio.gather(*tasks)} == {200}


@in_loop
async def test_room_comes_back_however_a_request_ends() -> None:
    async with served(closed_engine(), config=bounded(max_num_queued_reqs=1)) as app:
        endings = itertools.cycle(("abort", "invalid", "timeout", "too long"))
        for ending in itertools.islice(endings, 24):
            if ending == "abort":
                task = (await posting(app, 1))[0]
                task.cancel()
                await asyncio.wait({task})
            elif ending == "invalid":
                assert reason_of(await app.post(TEXT, {**BODY, "temperature": -1})) == (400, "invalid_value")
            elif ending == "timeout":
                reply = await app.post(TEXT, BODY, **{"x-request-timeout": "0.05"})
                assert reason_of(reply) == (504, "timeout")
            else:
                reply = await app.post(CHAT, {"messages": [{**HI, "content": "word " * 3000}]})
                assert reason_of(reply) == (400, "context_length_exceeded")
        assert len(app.llm.queue) == 0
        num_before = len(app.engine.added)
        tasks = await posting(app, 4)
        assert len(app.engine.added) - num_before == 3
        app.engine.go.set()
        await asyncio.gather(*tasks)


@in_loop
async def test_under_pressure_less_is_let_in() -> None:
    async with served(FakeEngine(lambda request: [30] * 3)) as app:
        app.api.pressure.take({"memory": 0.85})
        assert (await app.post(TEXT, BODY)).status_code == 200
        assert reason_of(await app.post(TEXT, {**BODY, "n": 2})) == (429, "under_pressure")
        background = {"model": MODEL, "input": "Hi", "background": True}
        assert reason_of(await app.post("/v1/responses", background)) == (429, "under_pressure")
        app.api.pressure.take({"memory": 0.95})
        assert reason_of(await app.post(CHAT, {"messages": [HI], "priority": 1})) == (429, "under_pressure")
        app.api.pressure.take({"memory": 1.0})
        assert reason_of(await app.post(CHAT, {"messages": [HI]})) == (429, "under_pressure")
        assert (await app.client.get("/v1/models")).status_code == 200
        app.api.pressure.take({"memory": 0.0})
        assert (await app.post(TEXT, {**BODY, "n": 2})).status_code == 200


@in_loop
async def test_every_route_that_gives_the_engine_work_has_the_gate() -> None:
    """All that take a POST, less those known to need no engine."""
    free = {"/tokenize", "/detokenize", "/ping", "/start_profile", "/stop_profile"}
    async with served(FakeEngine(lambda request: [30])) as app:
        documented = {path for path, methods in app.app.openapi()["paths"].items() if "post" in methods}
        own = {
            route.path for route in app.app.routes if isinstance(route, Route) and "POST" in (route.methods or ())
        }
        posts = documented | own
        working = {
            path
            for path in posts
            if not path.endswith(("/render", "/count_tokens", "/input_tokens", "/compact", "/cancel"))
        }
        assert working - free == GENERATING
