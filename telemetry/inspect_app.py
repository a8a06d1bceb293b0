"""InspectApp: the inspector API over the Observer's state, documented at / and /openapi.json."""

import logging
from collections.abc import Iterable
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Asked, arguments
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Route, RouteTable
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

MAX_QUERY_FIELDS = 64

_DESCRIPTION = """\
What a running vllm-obs server does, from the facts its processes record. GET changes nothing;
what changes anything, or sends a process a signal, is a POST.

All moments end in `_at` and are monotonic nanoseconds of the server's host; `/inspect/state` has a `clock` that
turns them into wall time. The same API serves a recording (`vllm-obs replay FILE`)."""

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

_logger = logging.getLogger(__name__)


def build_inspect_app(context: InspectContext) -> "InspectApp":
    """The application of one Observer."""
    return InspectApp(context, (route for make_router in _ROUTERS for route in make_router(context).routes))


class InspectApp:
    """Answers over HTTP. Every answer but a probe's is preceded by a drain of what was recorded up to now.

    A handler that fails is logged, and answered with 500.
    """

    def __init__(self, context: InspectContext, routes: Iterable[Route]) -> None:
        self._context = context
        self._documented = list(routes)
        self._table = RouteTable(
            [
                *self._documented,
                Route("GET", "/openapi.json", self._openapi, "this document"),
                Route("GET", "/", self._index, "every endpoint, for people"),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        if scope["path"] not in PROBES:
            await self._context.catch_up()
        reply = await self._reply(scope, receive)
        await reply(scope, receive, send)

    async def _reply(self, scope: Scope, receive: Receive) -> ASGIApp:
        try:
            found = self._table.find(scope["method"], scope["path"])
            given = arguments(found.route.wanted, Asked(scope, receive), found.in_path, _query(scope))
            return await found.route.handler(**given)
        except InspectError as error:
            return error.answer()
        except Exception:
            _logger.exception("%s %s failed", scope["method"], scope["path"][:128])
            return InspectError("this failed inside; the Observer's log has it", 500).answer()

    async def _openapi(self) -> Reply:
        return Answer(self.document())

    async def _index(self) -> Reply:
        from vllm_obs.telemetry.inspect_index import index_reply  # only who opens the page pays for loading it

        return index_reply(self.document())

    def document(self) -> dict[str, Any]:
        """What the API is, as OpenAPI has it."""
        from vllm_obs.telemetry.inspect_openapi import openapi_document  # only who reads it pays for loading it

        version = self._context.config.version or "unknown"
        return openapi_document("vllm-obs inspector", version, _DESCRIPTION, self._documented)


def _query(scope: Scope) -> dict[str, str]:
    """The last of each name. InspectError (400) for more fields than a route can have."""
    text = scope["query_string"].decode("latin-1")
    try:
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS))
    except ValueError:
        raise InspectError(f"the query has more than {MAX_QUERY_FIELDS} fields", 400) from None
