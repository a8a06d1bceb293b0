"""Inspector route of utilisation: how much of what the machine can do at best is used."""

from typing import Literal

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_reply import Answer, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.utilisation_view import utilisation_view

UtilisationWindow = Literal["10s", "1m", "5m"]


def utilisation_router(context: InspectContext) -> Router:
    """The route, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get(
        "/inspect/utilisation",
        summary="MFU and MBU: the workers' arithmetic and reading as shares of what was measured, and which binds",
    )
    async def utilisation(window: UtilisationWindow = "1m", engine: str = "0") -> Reply:
        label = engine_of(observer.state, engine).label
        return Answer(utilisation_view(context.utilisation, label, window, observer.now()))

    return router
