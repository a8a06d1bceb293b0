"""Responses that nobody waits for: asked for again, read as they come, cancelled, bounded."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fake_engine import ERROR_TOKEN, FakeEngine
from http_app import Served, served
from responses_client import HI, PATH, asked_by_openai, events_of, saying, without_ids

from vllm_obs.server.config import Limits, ServerConfig
from vllm_obs.server.phase import Phase
from vllm_obs.server.responses_events import EventLog
from vllm_obs.telemetry.records import RequestSubmitted

BACKGROUND = {**HI, "background": True}
STREAMED = {**BACKGROUND, "stream": True}


def stopped(*texts: str) -> FakeEngine:
    engine = saying(*texts)
    engine.go.clear()
    return engine


async def until(app: Served, response_id: str, status: str) -> dict[str, Any]:
    for _ in range(500):
        reply = (await app.client.get(f"{PATH}/{response_id}")).json()
        if reply["status"] == status:
            return dict(reply)
        await asyncio.sleep(0.01)
    raise AssertionError(f"{reply['status']} and not {status}")


def run(engine: FakeEngine, work: Callable[[Served], Awaitable[Any]], server: ServerConfig | None = None) -> Any:
    async def scenario() -> Any:
        async with served(engine, server) as app:
            return await work(app)

    return asyncio.run(scenario())


def test_it_is_queued_at_once_and_whole_later() -> None:
    engine = stopped("Hello you")

    async def work(app: Served) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        queued = (await app.post(PATH, BACKGROUND)).json()
        assert (await app.client.get(f"{PATH}/{queued['id']}")).json() == queued
        assert app.api.num_open == 1
        early = await app.post(PATH, {**HI, "previous_response_id": queued["id"]})
        assert (early.status_code, early.json()["error"]["reason"]) == (409, "conflict")
        items = (await app.client.get(f"{PATH}/{queued['id']}/input_items")).json()["data"]
        engine.go.set()
        done = await until(app, queued["id"], "completed")
        assert app.api.num_open == 0
        assert (await app.client.get(f"{PATH}/{queued['id']}/input_items")).json()["data"] == items
        return queued, done, (await app.post(PATH, HI)).json()

    queued, done, waited = run(engine, work)
    assert (queued["status"], queued["output"], queued["usage"], done["id"]) == ("queued", [], None, queued["id"])
    assert without_ids(done) == without_ids({**waited, "background": True})


def test_it_can_be_cancelled_twice_and_the_engine_stops() -> None:
    engine = stopped("Hello you")

    async def work(app: Served) -> list[Any]:
        queued = (await app.post(PATH, BACKGROUND)).json()
        replies = [await app.client.post(f"{PATH}/{queued['id']}/cancel") for _ in range(2)]
        await asyncio.sleep(0)
        return [*(reply.json() for reply in replies), engine.num_running, app.api.num_open]

    first, second, num_running, num_open = run(engine, work)
    assert (first["status"], first["completed_at"], first) == ("cancelled", None, second)
    assert (len(engine.aborted), num_running, num_open) == (1, 0, 0)


def test_only_a_background_response_can_be_cancelled() -> None:
    async def work(app: Served) -> httpx.Response:
        response = (await app.post(PATH, HI)).json()
        return await app.client.post(f"{PATH}/{response['id']}/cancel")

    reply = run(saying("Hi"), work)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "response_id")


def test_deleting_it_cancels_it() -> None:
    engine = stopped("Hello")

    async def work(app: Served) -> list[Any]:
        path = f"{PATH}/{(await app.post(PATH, BACKGROUND)).json()['id']}"
        deleted = await app.client.delete(path)
        return [
            deleted.json(),
            (await app.client.get(path)).status_code,
            (await app.client.delete(path)).status_code,
        ]

    deleted, *statuses = run(engine, work)
    assert (deleted["object"], deleted["deleted"], statuses) == ("response", True, [404, 404])
    assert len(engine.aborted) == 1


def test_its_events_can_be_read_again_from_any_of_them_on() -> None:
    async def scenario() -> None:
        async with asked_by_openai(saying("Hello there, you")) as (client, app):
            streamed = events_of((await app.post(PATH, STREAMED)).text)
            response_id = streamed[0]["response"]["id"]
            path = f"{PATH}/{response_id}"
            again = events_of((await app.client.get(path, params={"stream": "true"})).text)
            assert again == streamed
            rest = await client.responses.retrieve(response_id, stream=True, starting_after=4)
            assert [event.to_dict() async for event in rest] == streamed[5:]
            kinds = [event["type"].removeprefix("response.") for event in streamed]
            assert (kinds[:3], kinds[-1]) == (["created", "queued", "in_progress"], "completed")
            assert (await app.client.get(path)).json() == streamed[-1]["response"]

    asyncio.run(scenario())


def test_its_events_come_while_it_is_made_and_go_on_without_a_reader() -> None:
    engine = stopped("Hello there, you")

    async def work(app: Served) -> list[dict[str, Any]]:
        async with asyncio.timeout(20):
            reader = asyncio.ensure_future(app.post(PATH, STREAMED))
            while not engine.added:
                await asyncio.sleep(0.01)
            reader.cancel()
            await asyncio.wait({reader})
            (submitted,) = app.recorder.of(RequestSubmitted)
            assert isinstance(submitted, RequestSubmitted)
            path = f"{PATH}/resp_{submitted.http_id}"
            later = asyncio.ensure_future(app.client.get(path, params={"stream": "true"}))
            await asyncio.sleep(0.05)
            engine.go.set()
            return events_of((await later).text)

    assert run(engine, work)[-1]["type"] == "response.completed"


def test_events_that_were_not_asked_for_are_not_there() -> None:
    async def work(app: Served) -> list[int]:
        path = f"{PATH}/{(await app.post(PATH, BACKGROUND)).json()['id']}"
        queries = (
            {"stream": "true"},
            {"stream": "1"},
            {"starting_after": "1"},
            {"stream": "true", "starting_after": "x"},
        )
        return [(await app.client.get(path, params=query)).status_code for query in queries]

    assert run(saying("Hi"), work) == [400] * 4


def test_a_failure_is_the_responses_status() -> None:
    engine = FakeEngine(lambda request: [30, ERROR_TOKEN])

    async def work(app: Served) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        queued = (await app.post(PATH, BACKGROUND)).json()
        failed = await until(app, queued["id"], "failed")
        return failed, events_of((await app.post(PATH, STREAMED)).text)

    failed, events = run(engine, work)
    assert failed["error"] == {"code": "server_error", "message": "the request failed inside the engine"}
    assert [event["type"] for event in events[-2:]] == ["response.failed", "error"]
    assert events[-1]["error"]["reason"] == "internal_error"


def test_a_drain_waits_for_it_and_ends_it_as_failed() -> None:
    engine = stopped("Hello")

    async def work(app: Served) -> tuple[int, dict[str, Any], Phase]:
        queued = (await app.post(PATH, BACKGROUND)).json()
        app.api.drain()
        num_open, phase = app.api.num_open, app.api.phase
        app.llm.end_open()
        while app.api.num_open:
            await asyncio.sleep(0.01)
        return num_open, queued, phase

    num_open, queued, phase = run(engine, work)
    assert (num_open, queued["status"], phase) == (1, "queued", Phase.DRAINING)


def test_there_are_only_so_many_at_once() -> None:
    engine = stopped("Hello")

    async def work(app: Served) -> tuple[list[int], str, str | None, int]:
        replies = await asyncio.gather(*(app.post(PATH, BACKGROUND) for _ in range(5)))
        late = await app.post(PATH, BACKGROUND)
        await asyncio.sleep(0.05)
        error = late.json()["error"]["reason"]
        return (
            sorted(reply.status_code for reply in replies),
            error,
            late.headers.get("retry-after"),
            engine.num_running,
        )

    statuses, reason, retry_after, num_running = run(
        engine, work, ServerConfig(limits=Limits(max_background_responses=2))
    )
    assert (statuses, reason, retry_after) == ([200, 200, 429, 429, 429], "under_pressure", "1")
    assert num_running == 2


def test_a_log_of_events_is_bounded_and_says_so() -> None:
    async def scenario() -> tuple[int, str, int]:
        log = EventLog(max_bytes=200)
        log.emit("response.created", {"response": "x" * 50})
        assert log.num_bytes > 0
        log.emit("response.completed", {"response": "x" * 100})
        try:
            async for _ in log.read():
                raise AssertionError("it has no events")
        except Exception as error:
            return log.num_bytes, str(error), getattr(error, "status", 0)
        raise AssertionError("it did not fail")

    num_bytes, message, status = asyncio.run(scenario())
    assert (num_bytes, "200 bytes" in message, status) == (0, True, 413)
