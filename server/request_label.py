"""The outermost ASGI layer: an id and an arrival moment for every request."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.server.request_id import client_label, new_id


class RequestLabel:
    """Puts `request_id` (ours), `label` (the client's, or ours) and `received_at` into `scope["state"]`.

    Every reply carries the label as X-Request-Id.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        state["received_at"] = time.monotonic_ns()
        state["request_id"] = new_id()
        state["label"] = client_label(scope["headers"]) or state["request_id"]
        header = (b"x-request-id", state["label"].encode())

        async def send_labelled(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), header]
            await send(message)

        await self.app(scope, receive, send_labelled)
