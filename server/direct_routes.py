"""The innermost ASGI layer: requests for the engine go to their endpoints without the framework's way there."""

import inspect
from collections.abc import Sequence

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.entry import GENERATING, gives_work
from vllm_obs.server.public_paths import route_path


class DirectRoutes:
    """Of `routes` it serves those that give the engine work, and need nothing but the request; `app` the others.

    Matching, dependencies and exit stacks that such a route has no use for cost a quarter of what a request costs
    this process. Whoever asks finds the route in the scope, as the router leaves it there.
    """

    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute]) -> None:
        self.app = app
        known = [route for route in routes if isinstance(route, APIRoute)]
        self._endpoints = {route.path: (route, route.endpoint) for route in known if _is_direct(route)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        found = self._endpoints.get(route_path(scope)) if scope["type"] == "http" and gives_work(scope) else None
        if found is None:
            await self.app(scope, receive, send)
            return
        scope["route"], endpoint = found
        response = await endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def _is_direct(route: APIRoute) -> bool:
    """Whether its endpoint takes the request and no more, and what it returns is sent as it is."""
    if route.path not in GENERATING or "POST" not in (route.methods or ()):
        return False
    parameters = inspect.signature(route.endpoint).parameters.values()
    return [each.annotation for each in parameters] == [Request] and not route.dependencies
