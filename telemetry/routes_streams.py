"""Inspector routes that the drawn pages live on: steps and blocks as they happen, and as they were."""

from typing import Annotated

from starlette.types import ASGIApp

from vllm_obs.telemetry.block_feed import map_at
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_queue import queue_of
from vllm_obs.telemetry.inspect_reply import Answer
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.inspect_steps import engine_of
from vllm_obs.telemetry.routes_step import MAX_NUMBER, StepQuery


def streams_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer, streams = context.observer, context.streams

    @router.get(
        "/inspect/streams/steps",
        summary="Server-sent events: steps with their rows, four times a second; since=-1: the newest",
    )
    async def steps(since: Annotated[int, Bounds(ge=-1, le=MAX_NUMBER)] = -1, engine: str = "0") -> ASGIApp:
        return streams.steps(engine, since)

    @router.get(
        "/inspect/streams/blocks",
        summary="Server-sent events: a map of all KV blocks, then what changes, four times a second",
    )
    async def blocks(engine: str = "0") -> ASGIApp:
        return streams.blocks(engine)

    @router.get("/inspect/blocks/map", summary="All KV blocks in base64 arrays; also as of a past step")
    async def block_map(step: StepQuery = None, engine: str = "0") -> ASGIApp:
        return Answer(await map_at(engine_of(observer.state, engine), step))

    @router.get("/inspect/steps/{number}/queue", summary="Who waited when a step had been planned, and why")
    async def queue(number: int, engine: str = "0") -> ASGIApp:
        return Answer(queue_of(observer.state, engine, number))

    return router
