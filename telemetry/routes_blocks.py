"""Inspector routes of the KV cache: sums, trend, single blocks, and what a request found in it."""

from typing import Annotated

from vllm_obs.telemetry.block_summary import block_summary
from vllm_obs.telemetry.inspect_block import one_block, request_cache
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.routes_step import StepQuery
from vllm_obs.telemetry.trend import SPAN_SECONDS

MAX_BLOCK_ID = 2**31

BlockId = Annotated[int, Bounds(ge=0, le=MAX_BLOCK_ID - 1)]


def block_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/blocks/summary", summary="KV blocks summed: levels, sharing, empty room, holders")
    async def summary(step: StepQuery = None, engine: str = "0") -> Reply:
        return Answer(block_summary(observer.state, engine, step, observer.now()))

    @router.get("/inspect/blocks/trend", summary="Five minutes in spans: hits, evictions, turnover, levels")
    async def trend(
        every: Annotated[int, Bounds(description="seconds of a span: 1, 5 or 10")] = 5, engine: str = "0"
    ) -> Reply:
        if every not in SPAN_SECONDS:
            raise InspectError(f"every is {every}; a span is one of {SPAN_SECONDS} seconds", 422)
        return Answer(context.cache_trend.columns(engine, observer.now(), every))

    @router.get("/inspect/blocks/{block_id}", summary="One KV block: holders, hash, maker; also as of a past step")
    async def block(block_id: BlockId, step: StepQuery = None, engine: str = "0") -> Reply:
        return Answer(one_block(observer.state, engine, block_id, step))

    @router.get(
        "/inspect/requests/{name:path}/cache",
        summary="A request's blocks, who shares them, and why so many were found in the prefix cache",
    )
    async def cache(name: str, step: StepQuery = None) -> Reply:
        return Answer(request_cache(observer.state, name, step))

    return router
