"""The HTTP server's log: lines in the form of our own; an access line names the route and the request's id."""

import logging
from collections.abc import Sequence
from http import HTTPStatus

from starlette.routing import BaseRoute, Route

from vllm_obs.server.public_paths import PROBES
from vllm_obs.server.request_id import http_id
from vllm_obs.telemetry.console import STDOUT, ConsoleHandler

LOGGER = "uvicorn.access"
TRACE_LOGGER = "uvicorn.asgi"
NUM_ARGUMENTS = 5
"""Of uvicorn's access lines; those about what was no request are ours."""
UNKNOWN = "/(unknown)"
"""Stands for a path that is no route's: whatever somebody typed or tried there is not ours to keep."""

_NAMES: dict[int, str] = {status.value: status.phrase for status in HTTPStatus}


class AccessPaths(logging.Filter):
    """Leaves out probes, replaces paths and queries by the template of their route, and adds the request's id."""

    def __init__(self, routes: Sequence[BaseRoute], root_path: str = "") -> None:
        super().__init__()
        self._root_path = root_path
        self._patterns = {route.path: route.path_regex for route in routes if isinstance(route, Route)}

    def filter(self, record: logging.LogRecord) -> bool:
        """uvicorn's record holds client, method, target, version and status."""
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) != NUM_ARGUMENTS:
            return True
        path = str(arguments[2]).partition("?")[0].removeprefix(self._root_path)
        if path in PROBES:
            return False
        client, method, _, version, status = arguments
        # uvicorn's own formatter adds the status's name, which readers of its lines may look for.
        name = _NAMES.get(status, "") if isinstance(status, int) else ""
        record.msg = f"{record.msg} %s (%s)"
        record.args = (client, method, self._shown(path), version, status, name, http_id.get())
        return True

    def _shown(self, path: str) -> str:
        if path in self._patterns:
            return path
        return next((template for template, pattern in self._patterns.items() if pattern.match(path)), UNKNOWN)


def show_like_our_own() -> None:
    """From now on access lines go to stdout in the form of this process's log; uvicorn's others are part of it."""
    formats = (handler.formatter for handler in logging.getLogger().handlers if handler.formatter)
    handler = ConsoleHandler(STDOUT)
    handler.setFormatter(next(formats, None))
    logger = logging.getLogger(LOGGER)
    logger.handlers[:] = [handler]
    logger.propagate = False  # the log file in the run's directory is for rarer things


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
