"""Router: the inspector's routes, and which of them a method and a path name."""

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from starlette.types import ASGIApp

from vllm_obs.telemetry.inspect_parameters import Wanted, wanted_by
from vllm_obs.telemetry.inspect_reply import InspectError

Handler = Callable[..., Awaitable[ASGIApp]]
"""Makes the reply; its arguments are what its signature says."""

_PLACE = re.compile(r"\{([a-z_]+)(:path)?\}")


@dataclass
class Route:
    """One method of one path. `{name}` in a path stands for what is no slash, `{name:path}` for anything.

    `extra` is added to what the OpenAPI document says of it.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    extra: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def wanted(self) -> Wanted:
        """What the handler asks for; found out when it is first called."""
        return wanted_by(self.handler)

    @property
    def has_places(self) -> bool:
        """Whether it stands for more than one path."""
        return "{" in self.path

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What its paths are like."""
        parts, end = [], 0
        for place in _PLACE.finditer(self.path):
            parts += [
                re.escape(self.path[end : place.start()]),
                f"(?P<{place[1]}>{'.*' if place[2] else '[^/]+'})",
            ]
            end = place.end()
        return re.compile("".join(parts) + re.escape(self.path[end:]), re.DOTALL)

    @property
    def shown_path(self) -> str:
        """The path as OpenAPI writes it."""
        return self.path.replace(":path}", "}")


class Router:
    """Routes in the order in which they are looked at."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def get(self, path: str, summary: str) -> Callable[[Handler], Handler]:
        """Have the function that follows answer GET."""
        return self._adder("GET", path, summary, {})

    def post(self, path: str, summary: str, extra: dict[str, Any]) -> Callable[[Handler], Handler]:
        """Have the function that follows answer POST."""
        return self._adder("POST", path, summary, extra)

    def _adder(self, method: str, path: str, summary: str, extra: dict[str, Any]) -> Callable[[Handler], Handler]:
        def add(handler: Handler) -> Handler:
            self.routes.append(Route(method, path, handler, summary, extra))
            return handler

        return add


class Found(NamedTuple):
    """A route, and what stands in the places of its path."""

    route: Route
    in_path: dict[str, str]


class RouteTable:
    """Finds the route of a request: one without places first, then the first whose pattern fits."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = list(routes)
        self._plain: dict[str, list[Route]] = {}
        self._with_places = [route for route in self.routes if route.has_places]
        for route in self.routes:
            if not route.has_places:
                self._plain.setdefault(route.path, []).append(route)

    def find(self, method: str, path: str) -> Found:
        """InspectError: no such path (404), another method (405)."""
        plain = [Found(route, {}) for route in self._plain.get(path, ())]
        found = plain or [
            Found(route, match.groupdict())
            for route in self._with_places
            if (match := route.pattern.fullmatch(path)) is not None
        ]
        if not found:
            raise InspectError("Not Found", 404)
        one = next((each for each in found if each.route.method == method), None)
        if one is None:
            allowed = ", ".join(dict.fromkeys(each.route.method for each in found))
            raise InspectError("Method Not Allowed", 405, {"allow": allowed})
        return one
