"""The access log's lines: they name the route a request was for, never what else its target held."""

import logging
from collections.abc import Sequence

from starlette.routing import BaseRoute, Route

from vllm_obs.server.public_paths import PROBES

LOGGER = "uvicorn.access"
TRACE_LOGGER = "uvicorn.asgi"
UNKNOWN = "/(unknown)"
"""Stands for a path that is no route's: whatever somebody typed or tried there is not ours to keep."""


class AccessPaths(logging.Filter):
    """Leaves out probes, and replaces paths and queries by the template of their route."""

    def __init__(self, routes: Sequence[BaseRoute], root_path: str = "") -> None:
        super().__init__()
        self._root_path = root_path
        self._patterns = {route.path: route.path_regex for route in routes if isinstance(route, Route)}

    def filter(self, record: logging.LogRecord) -> bool:
        """uvicorn's record holds client, method, target, version and status."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) < 3:
            return True
        path = str(arguments[2]).partition("?")[0].removeprefix(self._root_path)
        if path in PROBES:
            return False
        record.args = (*arguments[:2], self._shown(path), *arguments[3:])
        return True

    def _shown(self, path: str) -> str:
        if path in self._patterns:
            return path
        return next((template for template, pattern in self._patterns.items() if pattern.match(path)), UNKNOWN)


def show_routes_only(routes: Sequence[BaseRoute], root_path: str = "") -> None:
    """From now on the access log's lines are as `AccessPaths` makes them for these routes; traces hold none."""
    logger = logging.getLogger(LOGGER)
    for old in [each for each in logger.filters if isinstance(each, AccessPaths)]:
        logger.removeFilter(old)
    logger.addFilter(AccessPaths(routes, root_path))
    logging.getLogger(TRACE_LOGGER).addFilter(_shows_no_scope)


def _shows_no_scope(record: logging.LogRecord) -> bool:
    """At level trace uvicorn shows a request's whole scope, its target included."""
    return "scope=" not in str(record.msg)
