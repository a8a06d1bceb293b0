"""The dashboard's ASGI application: Streamlit, the way to the Observer, and what keeps other pages out."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

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


def build_app(source: Source, host: str, trace_url: str = "", start: Starting = nothing_to_start) -> st.App:
    """The application over one source. There is one in a process: Streamlit's script runs in it."""
    install(source, trace_url)
    proxy = Proxy(source)

    @asynccontextmanager
    async def lifespan(_: st.App) -> AsyncIterator[dict[str, Any] | None]:
        end = await start()
        try:
            yield None
        finally:
            await proxy.close()
            await end()

    middleware = [Middleware(InspectGuard, host=host)]
    return st.App(SCRIPT, routes=proxy.routes, lifespan=lifespan, middleware=middleware)
