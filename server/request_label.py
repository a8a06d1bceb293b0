"""The outermost ASGI layer: an id and an arrival moment for every request."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vllm_obs.server.request_id import client_label, new_id


class RequestLabel:
    """Puts `request_id` (ours), `label` (the client's, or ours) and `received_at` into `scope["state"]`.

    Every reply carries the label as X-Request-Id. `root_path` is taken off the front of a path that has it, so
    that the server answers behind proxies which pass it on as well as behind those which do not.
    """

    def __init__(self, app: ASGIApp, root_path: str = "") -> None:
        self.app = app
        self._root_path = root_path.rstrip("/")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        scope["root_path"] = self._root_path
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
