"""The dashboard's ASGI application: Streamlit, the way to the Observer, and what keeps other pages out."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from vllm_obs.dashboard.closed_tabs import ClosedTabs
from vllm_obs.dashboard.page_list import PAGES
from vllm_obs.dashboard.proxy import Proxy
from vllm_obs.dashboard.source import Source, install
from vllm_obs.telemetry.inspect_guard import InspectGuard

SCRIPT = Path(__file__).parent / "script" / "main.py"

Ending = Callable[[], Awaitable[None]]
Starting = Callable[[], Awaitable[Ending]]
"""Begins what the source needs, in the application's event loop, and answers with what ends it."""


async def _nothing() -> None:
    pass


async def nothing_to_start() -> Ending:
    """The source needs nothing."""
    return _nothing


def build_app(
    source: Source,
    host: str,
    trace_url: str = "",
    start: Starting = nothing_to_start,
    others: Sequence[Source] = (),
) -> st.App:
    """The application over one source, or several. There is one in a process: Streamlit's script runs in it."""
    install(source, trace_url, others)
    proxy = Proxy(source, others)

    @asynccontextmanager
    async def lifespan(_: st.App) -> AsyncIterator[dict[str, Any] | None]:
        end = await start()
        try:
            yield None
        finally:
            await proxy.close()
            await end()

    middleware = [Middleware(InspectGuard, host=host), Middleware(ClosedTabs)]
    routes = [*proxy.routes, Route(f"/{PAGES[0].name}", _first_page, methods=["GET"])]
    return st.App(SCRIPT, routes=routes, lifespan=lifespan, middleware=middleware)


async def _first_page(request: Request) -> RedirectResponse:
    """The first page has the empty path; links from elsewhere name it like the others."""
    query = request.url.query
    return RedirectResponse(f"./?{query}" if query else "./")
