"""Inspector route of utilisation: how much of what the machine can do at best is used."""

from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.inspect_context import Answer, InspectContext
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.utilisation_view import utilisation_view

UtilisationWindow = Literal["10s", "1m", "5m"]


def utilisation_router(context: InspectContext) -> APIRouter:
    """The route, over one Observer."""
    router = APIRouter()
    observer = context.observer

    @router.get(
        "/inspect/utilisation",
        summary="MFU and MBU: the workers' arithmetic and reading as shares of what was measured, and which binds",
    )
    async def utilisation(window: UtilisationWindow = "1m", engine: str = "0") -> Response:
        label = engine_of(observer.state, engine).label
        return Answer(utilisation_view(context.utilisation, label, window, observer.now()))

    return router
