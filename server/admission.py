"""The gate between the edge and the routes: who is let in in which phase, and how many are inside."""

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.public_paths import ALWAYS_ANSWERED, route_path
from vllm_obs.server.state import ApiServer


class Admission:
    """Refuses with 503 while the engine loads, drains or is gone; counts the requests it lets in."""

    def __init__(self, app: ASGIApp, api: ApiServer) -> None:
        self.app = app
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http" or route_path(scope) in ALWAYS_ANSWERED:
            await self.app(scope, receive, send)
            return
        refusal = self._api.refusal()
        if refusal is not None:
            raise refusal
        self._api.num_open += 1
        try:
            await self.app(scope, receive, send)
        finally:
            self._api.num_open -= 1
