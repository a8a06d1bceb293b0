"""Inspector routes of what requests cost and of whether they kept to the objectives."""

from typing import Literal

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.economics_view import economics_view
from vllm_obs.telemetry.inspect_context import Answer, InspectContext
from vllm_obs.telemetry.rate_windows import end_of_second

WindowName = Literal["10s", "1m", "5m", "run"]


def economics_router(context: InspectContext) -> APIRouter:
    """The routes, over one Observer."""
    router = APIRouter()
    observer = context.observer

    @router.get(
        "/inspect/economics",
        summary="Step time and block-seconds by account and by request; an account's step_share is of what all "
        "accounts took in the window, a request's of its engine's step time while it was there",
    )
    async def economics(window: WindowName = "5m") -> Response:
        return Answer(economics_view(context.economics, observer.now(), window))

    @router.get("/inspect/slo", summary="How many requests kept to --slo, and the worst that did not")
    async def slo() -> Response:
        # Of a time that stands still the second that was not over would never be counted.
        now = observer.now()
        return Answer(context.slo.view(now if observer.is_live else end_of_second(now)))

    return router
