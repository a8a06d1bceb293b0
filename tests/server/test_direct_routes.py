"""Requests for the engine go straight to their endpoints, and nobody can tell by what comes back."""

import asyncio

import pytest
from fake_engine import FakeEngine
from http_app import Served, served

from vllm_obs.server.direct_routes import DirectRoutes
from vllm_obs.server.entry import GENERATING
from vllm_obs.telemetry.records import HttpRequestEnded

BODIES = {
    "/v1/completions": {"prompt": "Hi", "max_tokens": 2},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions?x=1": {"prompt": ""},
    "/v1/chat/completions/": {"messages": []},
}


def layer_of(app: Served) -> DirectRoutes:
    """The layer in an application whose layers have been made."""
    layer = app.app.middleware_stack
    while not isinstance(layer, DirectRoutes):
        layer = layer.app  # type: ignore[union-attr]
    return layer


def test_every_way_to_the_engine_that_needs_only_the_request_is_direct() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [30, 40])) as app:
            await app.client.get("/health")
            assert layer_of(app)._endpoints.keys() == GENERATING

    asyncio.run(scenario())


@pytest.mark.parametrize("path", BODIES)
def test_the_same_comes_back_as_by_the_frameworks_way(path: str) -> None:
    async def scenario() -> None:
        told = []
        async with served(FakeEngine(lambda request: [30, 40])) as app:
            for is_direct in (True, False):
                if not is_direct:
                    layer_of(app)._endpoints.clear()
                reply = await app.post(path, BODIES[path] | {"seed": 3})
                ended = app.recorder.of(HttpRequestEnded)[-1]
                assert isinstance(ended, HttpRequestEnded)
                body = {name: value for name, value in reply.json().items() if name not in ("id", "created")}
                told.append((reply.status_code, body, ended.handler, ended.status, ended.reason))
        assert told[0] == told[1]

    asyncio.run(scenario())


def test_other_methods_are_the_routers() -> None:
    async def scenario() -> None:
        async with served(FakeEngine(lambda request: [30, 40])) as app:
            reply = await app.client.get("/v1/completions")
            assert (reply.status_code, reply.json()["error"]["code"]) == (405, 405)

    asyncio.run(scenario())
