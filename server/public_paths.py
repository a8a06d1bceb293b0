"""Which paths are open to everybody, and how a path is read behind a root path."""

from urllib.parse import unquote

import httptools
from starlette._utils import get_route_path
from starlette.types import Scope

PROBES = frozenset({"/health", "/ping", "/livez", "/readyz", "/startupz"})
"""Answered in every phase of the server, without a key, and left out of the access log."""

PUBLIC = PROBES | {"/metrics"}
"""Answered without a key. Everything else, unknown paths included, needs one where keys are set."""

ALWAYS_ANSWERED = PUBLIC | {"/version", "/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
"""Answered also while the engine is loading, draining or gone."""


def path_of_target(target: bytes) -> str | None:
    """The path of a request's target as a scope has it; None for a target that is none."""
    try:
        path = httptools.parse_url(target).path
        return unquote(path.decode("ascii")) if path is not None else None
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None


def route_path(scope: Scope) -> str:
    """The path that will be routed: exactly as the router reads it, so that no two readings differ."""
    return get_route_path(scope)
