"""Every route the application has, those that no document lists included, needs a key unless it is public."""

import asyncio
import re

from fake_engine import FakeEngine
from http_app import Served, served
from starlette.routing import Route

from vllm_obs.server.config import ServerConfig
from vllm_obs.server.profile_config import ProfilerConfig
from vllm_obs.server.public_paths import PROBES, PUBLIC
from vllm_obs.server.request_record import RequestRecord

KEYS = ServerConfig(api_keys=("s3cret",), profiler_config=ProfilerConfig(is_open=True))
CHANGING = {"POST", "PUT", "DELETE", "PATCH"}


def routes_of(app: Served) -> list[tuple[str, str]]:
    """(method, path) of all, as the record of requests knows them."""
    (record,) = (layer for layer in app.app.user_middleware if layer.cls is RequestRecord)
    routes = [route for route in record.kwargs["routes"] if isinstance(route, Route)]  # type: ignore[attr-defined]
    return [(method, route.path) for route in routes for method in sorted(route.methods or ())]


def test_no_route_is_open_but_probes_and_metrics() -> None:
    async def main() -> None:
        async with served(FakeEngine(lambda request: [30]), KEYS) as app:
            walked = routes_of(app)
            for method, path in walked:
                for key in ("", "Bearer wrong"):
                    reply = await app.client.request(
                        method, re.sub(r"\{.*?\}", "x", path), headers={"authorization": key}
                    )
                    assert (reply.status_code != 401) == (path in PUBLIC), (method, path, reply.status_code)
            paths = {path for _, path in walked}
            assert paths >= {*PUBLIC, "/openapi.json", "/docs", "/version", "/start_profile", "/v1/completions"}
            assert len(walked) > 30

    asyncio.run(main())


def test_no_open_route_changes_anything() -> None:
    """/ping by POST is vLLM's; it answers as by GET."""

    async def main() -> None:
        async with served(FakeEngine(lambda request: [30]), KEYS) as app:
            open_ones = [(method, path) for method, path in routes_of(app) if path in PUBLIC]
            assert {path for method, path in open_ones if method in CHANGING} == {"/ping"}
            assert {path for _, path in open_ones} == PROBES | {"/metrics"}

    asyncio.run(main())
