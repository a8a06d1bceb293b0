"""The ASGI layer that says who a request is: its id, its label, its arrival and its trace."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.server.anthropic_paths import is_anthropic
from vllm_obs.server.request_id import client_label, http_id, new_id
from vllm_obs.server.state import ApiServer


class RequestLabel:
    """Puts `request_id` (ours), `label` (the client's, or ours), `received_at` and `trace_parent` into the state.

    Every reply carries the label as X-Request-Id unless that is switched off (also as Request-Id to clients of
    Anthropic's API), and its trace where there is tracing. `received_at` is the connection's moment of the first
    byte where it tells one. The server's root path is taken off the front of a path that has it, so that it
    answers behind proxies which pass it on as well as behind those which do not.
    """

    def __init__(self, app: ASGIApp, api: ApiServer) -> None:
        self.app = app
        self._api = api
        self._root_path = api.server.root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["root_path"] = self._root_path
        state = scope.setdefault("state", {})
        state.setdefault("received_at", time.monotonic_ns())
        state["request_id"] = new_id()
        http_id.set(state["request_id"])
        state["label"] = client_label(scope["headers"]) or state["request_id"]
        headers = self._join_trace(scope)
        names = [b"x-request-id"] if self._api.server.enable_request_id_headers else []
        names += [b"request-id"] if is_anthropic(scope) else []

        async def send_labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                label = state["label"].encode()  # the body may have named the request by now
                labels = [(name, label) for name in names]
                message["headers"] = [*message.get("headers", ()), *headers, *labels]
            await send(message)

        await self.app(scope, receive, send_labelled)

    def _join_trace(self, scope: Scope) -> list[tuple[bytes, bytes]]:
        """Decide on the request's trace; the headers that tell of it."""
        state, tracing = scope["state"], self._api.tracing
        state["trace_parent"] = ""
        if tracing is None:
            return []
        trace = tracing.trace_of(state["request_id"], scope["headers"])
        state["trace_parent"] = trace.recorded
        return trace.reply_headers()
