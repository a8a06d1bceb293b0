"""The outermost ASGI layer: one fact for every HTTP request, told when its last byte is out or its client gone."""

import logging
import time
from collections.abc import Sequence
from typing import Any

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.engine.faults import maybe_fault
from vllm_obs.server.body_writer import BodyWriter
from vllm_obs.server.public_paths import PROBES, route_path
from vllm_obs.server.refused_head import RefusedHead
from vllm_obs.server.state import ApiServer
from vllm_obs.telemetry.records import HttpRequestEnded

logger = logging.getLogger(__name__)

OTHER = "other"
METHODS = frozenset({"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"})
CLIENT_GONE = 499
BROKEN = 500


class RequestRecord:
    """Records an `HttpRequestEnded` for every request, however it ended.

    The layers inside put what they know of it into `scope["state"]`: `request_id`, `label`, `received_at`,
    `trace_parent`, and `reason` where it failed. `routes` are all that the application has.
    """

    def __init__(self, app: ASGIApp, api: ApiServer, routes: Sequence[BaseRoute]) -> None:
        self.app = app
        self._api = api
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(receive, send, scope.get("state", {}).get("body_writer"))
        self._api.http_begins()
        try:
            await self.app(scope, exchange.receive, exchange.send)
            await exchange.wait_written(scope)
        except Exception:
            exchange.is_broken = True
            raise
        finally:
            self._api.num_open_http -= 1
            self._record(scope, exchange)

    def _record(self, scope: Scope, exchange: "Exchange") -> None:
        state, now = scope["state"], time.monotonic_ns()
        ended = HttpRequestEnded(
            http_id=state["request_id"],
            client_index=self._api.client_index,
            external_id=state["label"],
            handler=handler_of(scope, self._routes),
            method=scope["method"] if scope["method"] in METHODS else OTHER,
            status=exchange.final_status,
            reason=state.get("reason", "internal_error" if exchange.is_broken else ""),
            trace_parent=state["trace_parent"],
            received_at=state["received_at"],
            first_byte_at=exchange.first_byte_at or now,
            ended_at=now,
            num_request_bytes=exchange.num_request_bytes,
            num_response_bytes=exchange.num_response_bytes,
        )
        self._api.recorder.record(ended)
        if self._api.config.observability.enable_log_requests and route_path(scope) not in PROBES:
            seconds = (now - ended.received_at) / 1e9
            label = ended.external_id[: self._api.server.max_log_len]
            logger.info("request %s (%s): %d after %.3f s", ended.http_id, label, ended.status, seconds)


class Exchange:
    """What went over one request's connection so far: its status, its bytes, and whether all of them went.

    `writer` is what parts of the body are written by that are not sent.
    """

    def __init__(self, receive: Receive, send: Send, writer: BodyWriter | None = None) -> None:
        self.status = 0
        self.num_request_bytes = 0
        self.is_whole = False
        self.is_broken = False
        self._receive = receive
        self._send = send
        self._writer = writer
        self._first_sent_at = 0
        self._num_sent_bytes = 0

    async def receive(self) -> Message:
        """The client's next message, counted."""
        message = await self._receive()
        self.num_request_bytes += len(message.get("body", b""))
        return message

    async def send(self, message: Message) -> None:
        """Send a message to the client, and count it."""
        is_last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if is_last:
            maybe_fault("http_send")
        await self._send(message)
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif body := message.get("body", b""):
            self._first_sent_at = self._first_sent_at or time.monotonic_ns()
            self._num_sent_bytes += len(body)
        self.is_whole = self.is_whole or is_last

    async def wait_written(self, scope: Scope) -> None:
        """Return once the socket has taken the reply; one whose client left before its end is not whole."""
        written = scope["state"].get("written")
        if written is not None and self.is_whole:
            self.is_whole = await written()

    @property
    def first_byte_at(self) -> int:
        """When the body began to be sent or written; 0 where it did not."""
        written_at = 0 if self._writer is None else self._writer.begun_at
        return min(filter(None, (self._first_sent_at, written_at)), default=0)

    @property
    def num_response_bytes(self) -> int:
        """All bytes of the body so far."""
        return self._num_sent_bytes + (0 if self._writer is None else self._writer.num_bytes)

    @property
    def final_status(self) -> int:
        """The status it ended with, for the record."""
        if self.is_whole:
            return self.status
        return BROKEN if self.is_broken else CLIENT_GONE


def handler_of(scope: Scope, routes: Sequence[BaseRoute]) -> str:
    """The template of the route a request is for, also where it never came so far; `other` where there is none."""
    route: Any = scope.get("route")
    if route is None:
        route = next((route for route in routes if route.matches(scope)[0] != Match.NONE), None)
    return str(getattr(route, "path", OTHER))


def record_refused(api: ApiServer, refused: RefusedHead) -> None:
    """Record a request that its connection refused: there is no path and no method that one could rely on."""
    now = time.monotonic_ns()
    api.recorder.record(
        HttpRequestEnded(
            http_id=refused.http_id,
            client_index=api.client_index,
            external_id=refused.http_id,
            handler=OTHER,
            method=OTHER,
            status=refused.error.status,
            reason=refused.error.reason,
            trace_parent="",
            received_at=refused.received_at,
            first_byte_at=now,
            ended_at=now,
            num_request_bytes=0,
            num_response_bytes=refused.num_response_bytes,
        )
    )
