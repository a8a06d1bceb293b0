"""Inspector routes of requests."""

from dataclasses import dataclass
from typing import Annotated

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, Reply
from vllm_obs.telemetry.inspect_request_list import RequestFilter, StateFilter, request_list
from vllm_obs.telemetry.inspect_requests import one_request
from vllm_obs.telemetry.inspect_router import Router

MAX_ROWS = 1000
SLOW_MEASURE, SLOW_WINDOW = "e2e", "run"


@dataclass(frozen=True)
class RequestQuery:
    """Which requests are asked for."""

    state: Annotated[StateFilter | None, Bounds(description="live is all that have not ended")] = None
    slow_only: Annotated[bool, Bounds(description="only those slower than 95 % of all")] = False
    min_seconds: Annotated[float, Bounds(ge=0.0, le=1e9)] = 0.0
    failed_only: Annotated[bool, Bounds(description="only what failed")] = False
    limit: Annotated[int, Bounds(ge=1, le=MAX_ROWS)] = 100
    account: Annotated[str | None, Bounds(max_length=64, description="the label of an API key")] = None
    text: Annotated[str, Bounds(max_length=128, description="a part of an id, a label or a trace id")] = ""
    cursor: Annotated[str | None, Bounds(max_length=512, description="that of the page before")] = None

    def wanted(self, context: InspectContext) -> RequestFilter:
        """The filter that this comes to."""
        least = max(self.min_seconds, slow_seconds(context) if self.slow_only else 0.0)
        return RequestFilter(self.state, least, self.failed_only, self.limit, self.cursor, self.account, self.text)


def request_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get(
        "/inspect/requests",
        summary="Sequences, newest first; all filters combine; `refused` are HTTP requests answered with an error",
    )
    async def requests(asked: RequestQuery) -> Reply:
        return Answer(request_list(observer.state, observer.now(), asked.wanted(context), context.economics))

    @router.get(
        "/inspect/requests/{name:path}",
        summary="One request by our id, its reply's, the client's label or its trace id, and why it took so long",
    )
    async def request(name: str) -> Reply:
        return Answer(one_request(observer.state, observer.now(), name, context.economics))

    return router


def slow_seconds(context: InspectContext) -> float:
    """What 95 % of the run's sequences stayed under, end to end."""
    summary = context.quantiles.summary(SLOW_WINDOW, context.observer.now())[SLOW_MEASURE]
    return float(summary.p95)
