"""A method and a path name a route: plain paths first, then patterns in order; the document shows all."""

import subprocess
import sys
from typing import Annotated, Literal

import pytest

from vllm_obs.telemetry.inspect_openapi import openapi_document
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError
from vllm_obs.telemetry.inspect_router import Router, RouteTable


def routes_of_requests() -> Router:
    router = Router()

    @router.get("/requests", summary="all")
    async def all_requests(
        limit: Annotated[int, Bounds(ge=1, le=9, description="so many")] = 5,
        state: Literal["a", "b"] | None = None,
    ) -> Answer:
        return Answer([limit, state])

    @router.get("/requests/{name:path}/blocks", summary="blocks")
    async def blocks(name: str) -> Answer:
        return Answer(name)

    @router.get("/requests/{name:path}", summary="one")
    async def one(name: str) -> Answer:
        return Answer(name)

    @router.post("/processes/{pid}/stacks", summary="stacks", extra={"requestBody": {"required": True}})
    async def stacks(pid: int) -> Answer:
        return Answer(pid)

    @router.get("/processes/{pid}", summary="a process")
    async def process(pid: int) -> Answer:
        return Answer(pid)

    @router.get("/processes/all", summary="processes")
    async def processes() -> Answer:
        return Answer([])

    return router


@pytest.mark.parametrize(
    ("method", "path", "summary", "in_path"),
    [
        ("GET", "/requests", "all", {}),
        ("GET", "/requests/a", "one", {"name": "a"}),
        ("GET", "/requests/a/b\nc", "one", {"name": "a/b\nc"}),
        ("GET", "/requests/a/b/blocks", "blocks", {"name": "a/b"}),
        ("GET", "/processes/7", "a process", {"pid": "7"}),
        ("GET", "/processes/all", "processes", {}),
        ("POST", "/processes/7/stacks", "stacks", {"pid": "7"}),
    ],
)
def test_the_route_and_what_stands_in_its_places(
    method: str, path: str, summary: str, in_path: dict[str, str]
) -> None:
    found = RouteTable(routes_of_requests().routes).find(method, path)
    assert (found.route.summary, found.in_path) == (summary, in_path)


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/", 404, None),
        ("GET", "/requestsa", 404, None),
        ("GET", "/processes/7/8", 404, None),
        ("GET", "/processes/", 404, None),
        ("POST", "/requests", 405, "GET"),
        ("HEAD", "/requests/a", 405, "GET"),
        ("GET", "/processes/7/stacks", 405, "POST"),
    ],
)
def test_what_there_is_not_is_refused(method: str, path: str, status: int, allow: str | None) -> None:
    with pytest.raises(InspectError) as refused:
        RouteTable(routes_of_requests().routes).find(method, path)
    assert refused.value.status == status
    assert dict(refused.value.answer().raw_headers).get(b"allow", b"").decode() == (allow or "")


def test_the_document_shows_every_route_with_what_its_parameters_may_be() -> None:
    document = openapi_document("t", "1", "d", routes_of_requests().routes)
    paths = document["paths"]
    assert {path: list(methods) for path, methods in paths.items()} == {
        "/requests": ["get"],
        "/requests/{name}/blocks": ["get"],
        "/requests/{name}": ["get"],
        "/processes/{pid}/stacks": ["post"],
        "/processes/{pid}": ["get"],
        "/processes/all": ["get"],
    }
    assert paths["/requests"]["get"]["parameters"] == [
        {
            "name": "limit",
            "in": "query",
            "required": False,
            "schema": {"type": "integer", "minimum": 1, "maximum": 9, "default": 5},
            "description": "so many",
        },
        {"name": "state", "in": "query", "required": False, "schema": {"type": "string", "enum": ["a", "b"]}},
    ]
    assert paths["/requests/{name}"]["get"]["parameters"][0] == {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string"},
    }
    assert paths["/processes/{pid}/stacks"]["post"]["requestBody"] == {"required": True}


def test_the_observer_loads_no_framework() -> None:
    """What takes longer to load than all the rest would be paid by every start, beside a model that computes."""
    code = "import sys, vllm_obs.telemetry.observer_process; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    for name in ("fastapi", "pydantic", "numpy", "prometheus_client", "opentelemetry", "anyio", "psutil"):
        assert name not in loaded
