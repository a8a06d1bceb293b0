"""Inspector routes of what requests cost and of whether they kept to the objectives."""

from itertools import islice
from typing import Annotated, Literal

from vllm_obs.telemetry.economics_view import economics_view
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.rate_windows import end_of_second
from vllm_obs.telemetry.run_state import RunState
from vllm_obs.telemetry.slo import Slo
from vllm_obs.telemetry.slo_targets import SloTargets, slo_targets

WindowName = Literal["10s", "1m", "5m", "run"]
TargetsQuery = Annotated[
    str, Bounds(max_length=128, description="such as ttft=0.5,tpot=50ms; else those of --slo")
]
MAX_JUDGED = 2000
"""Of those that ended, so many of the newest are held to targets that are only asked about."""


def economics_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get(
        "/inspect/economics",
        summary="Step time and block-seconds by account and by request; an account's step_share is of what all "
        "accounts took in the window, a request's of its engine's step time while it was there",
    )
    async def economics(window: WindowName = "5m") -> Reply:
        return Answer(economics_view(context.economics, observer.now(), window))

    @router.get(
        "/inspect/slo",
        summary="How many requests kept to --slo, and the worst that did not; with targets, how many of the last "
        "would have kept to those",
    )
    async def slo(targets: TargetsQuery = "") -> Reply:
        # Of a time that stands still the second that was not over would never be counted.
        now = observer.now() if observer.is_live else end_of_second(observer.now())
        if not targets:
            return Answer(context.slo.view(now))
        try:
            judged = judged_by(observer.state, slo_targets(targets))
        except ValueError as error:
            raise InspectError(f"targets: {error}", 422) from None
        return Answer(judged.view(now))

    return router


def judged_by(state: RunState, targets: SloTargets) -> Slo:
    """How the newest sequences that are kept would have done."""
    judged = Slo(targets)
    num_older = max(0, len(state.ended) - MAX_JUDGED)
    for ledger in islice(state.ended, num_older, None):
        judged.sequence_closed(ledger)
    return judged
