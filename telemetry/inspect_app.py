"""The inspector API: a FastAPI application over the Observer's state, documented at / and /openapi.json."""

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.telemetry.inspect_context import Answer, InspectContext, InspectError
from vllm_obs.telemetry.inspect_index import add_index
from vllm_obs.telemetry.routes_blocks import block_router
from vllm_obs.telemetry.routes_economics import economics_router
from vllm_obs.telemetry.routes_incident import incident_router
from vllm_obs.telemetry.routes_live import live_router
from vllm_obs.telemetry.routes_probe import PROBES, probe_router
from vllm_obs.telemetry.routes_process import process_router
from vllm_obs.telemetry.routes_profile import profile_router
from vllm_obs.telemetry.routes_queues import queues_router
from vllm_obs.telemetry.routes_request import request_router
from vllm_obs.telemetry.routes_stacks import stacks_router
from vllm_obs.telemetry.routes_startup import startup_router
from vllm_obs.telemetry.routes_step import step_router
from vllm_obs.telemetry.routes_streams import streams_router
from vllm_obs.telemetry.routes_telemetry import telemetry_router
from vllm_obs.telemetry.routes_utilisation import utilisation_router
from vllm_obs.telemetry.routes_verdict import verdict_router

_DESCRIPTION = """\
What a running vllm-obs server does, from the facts its processes record. GET changes nothing;
what changes anything, or sends a process a signal, is a POST.

All moments end in `_at` and are monotonic nanoseconds of the server's host; `/inspect/state` has a `clock` that
turns them into wall time. The same API serves a recording (`vllm-obs replay FILE`)."""

_NO_TELEMETRY: dict[str, Any] = {
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
}
"""What observes is not observed; older FastAPI versions ignore the argument."""


_ROUTERS = (
    live_router,
    step_router,
    streams_router,
    block_router,
    queues_router,
    request_router,
    process_router,
    startup_router,
    telemetry_router,
    economics_router,
    stacks_router,
    incident_router,
    profile_router,
    verdict_router,
    utilisation_router,
    probe_router,
)


def build_inspect_app(context: InspectContext) -> FastAPI:
    """The application of one Observer. Every answer is preceded by a drain."""
    app = FastAPI(
        title="vllm-obs inspector",
        version=context.config.version or "unknown",
        description=_DESCRIPTION,
        redirect_slashes=False,
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        default_response_class=Answer,
        exception_handlers={
            InspectError: _refuse,
            RequestValidationError: _refuse_parameters,
            HTTPException: _refuse_route,
        },
        **_NO_TELEMETRY,
    )
    for make_router in _ROUTERS:
        app.include_router(make_router(context))
    add_index(app)
    app.add_middleware(DrainFirst, catch_up=context.catch_up)
    return app


class DrainFirst:
    """An ASGI layer that takes what was recorded up to now before anything but a probe is answered."""

    def __init__(self, app: ASGIApp, catch_up: Callable[[], Awaitable[None]]) -> None:
        self._app = app
        self._catch_up = catch_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Drain, then pass the request on."""
        if scope["type"] == "http" and scope["path"] not in PROBES:
            await self._catch_up()
        await self._app(scope, receive, send)


async def _refuse(request: Request, error: Exception) -> Response:
    assert isinstance(error, InspectError)
    return error.answer()


async def _refuse_parameters(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return InspectError(f"{where}: {first['msg']}", 422).answer()


async def _refuse_route(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, or another method."""
    assert isinstance(error, HTTPException)
    return InspectError(str(error.detail), error.status_code).answer()
