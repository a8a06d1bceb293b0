"""Inspector route of the verdict: why it is slow, over the last seconds or minutes."""

from typing import Annotated, Any, Literal

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.rate_windows import NS, NUM_SECONDS, WINDOWS

VerdictWindow = Literal["10s", "1m", "5m"]
MAX_MOMENT = 2**62

AtQuery = Annotated[
    int | None, Bounds(ge=0, le=MAX_MOMENT, description="the moment (monotonic ns) the window ends at; else now")
]


def verdict_router(context: InspectContext) -> Router:
    """The route, over one Observer."""
    router = Router()

    @router.get(
        "/inspect/verdict", summary="Why it is slow: one sentence, its evidence, what helps and what does not"
    )
    async def verdict(window: VerdictWindow = "1m", at: AtQuery = None) -> Reply:
        return Answer(verdict_view(context, window, at))

    return router


def verdict_view(context: InspectContext, window: str, at: int | None = None) -> dict[str, Any]:
    """The document over a window that ends now, or ended at a moment; InspectError (404) if that is not kept."""
    now = context.observer.now()
    if at is None:
        return context.verdict.document(window, now)
    if at > now:
        raise InspectError(f"at is {at}, which is later than now, {now}", 422)
    oldest = now - (NUM_SECONDS - WINDOWS[window]) * NS
    if at < oldest:
        raise InspectError(f"at is {at}; a window of {window} is kept for moments from {max(0, oldest)} on", 404)
    return context.verdict.document(window, at, is_past=True)
