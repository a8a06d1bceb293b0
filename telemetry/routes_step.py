"""Inspector routes of steps, blocks and the timeline."""

import asyncio
from typing import Annotated

from vllm_obs.telemetry.inspect_blocks import block_list, request_blocks
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.inspect_steps import one_step, step_at, steps_since
from vllm_obs.telemetry.inspect_timeline import drawing_of
from vllm_obs.telemetry.timeline import chrome_trace

MAX_STEPS = 10_000
MAX_TIMELINE_SECONDS = 600.0
MAX_NUMBER = 2**62
_UNITS = {"s": 1.0, "m": 60.0}

StepQuery = Annotated[int | None, Bounds(ge=0, le=MAX_NUMBER, description="as it was after this step; else now")]


def step_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/steps", summary="Steps after one that is known, in columns; since=-1: the newest")
    async def steps(
        since: Annotated[int, Bounds(ge=-1, le=MAX_NUMBER)] = -1,
        limit: Annotated[int, Bounds(ge=1, le=MAX_STEPS)] = 500,
        engine: str = "0",
    ) -> Reply:
        return Answer(steps_since(observer.state, engine, since, limit))

    @router.get("/inspect/step_at", summary="The step that ran at a time of day, in ms since 1970")
    async def step_of(wall_ms: Annotated[int, Bounds(ge=0, le=MAX_NUMBER // 10**6)], engine: str = "0") -> Reply:
        return Answer(step_at(observer.state, engine, wall_ms * 10**6 - observer.wall_offset))

    @router.get("/inspect/steps/{number}", summary="Everything about one step")
    async def step(number: int, engine: str = "0") -> Reply:
        return Answer(one_step(observer.state, engine, number))

    @router.get("/inspect/blocks", summary="All KV blocks: state, references, owners; also as of a past step")
    async def blocks(step: StepQuery = None, engine: str = "0") -> Reply:
        return Answer(block_list(observer.state, engine, step))

    @router.get("/inspect/requests/{name:path}/blocks", summary="A request's block tables; also as of a past step")
    async def tables(name: str, step: StepQuery = None) -> Reply:
        return Answer(request_blocks(observer.state, name, step))

    @router.get("/inspect/timeline", summary="The last seconds as Chrome trace JSON, for ui.perfetto.dev")
    async def timeline(last: str = "30s") -> Reply:
        drawing = drawing_of(observer, span_seconds(last))
        # Writing out a hundred thousand events takes a second, in which others want to be answered.
        return await asyncio.to_thread(lambda: Answer(chrome_trace(drawing)))

    return router


def span_seconds(text: str) -> float:
    """30s, 2m or 90 as seconds; InspectError (422) for anything else or more than is kept."""
    unit = _UNITS.get(text[-1:])
    digits = text[:-1] if unit else text
    is_number = digits.isascii() and digits.replace(".", "", 1).isdecimal() and len(digits) <= 12
    seconds = float(digits) * (unit or 1.0) if is_number else 0.0
    if not 0 < seconds <= MAX_TIMELINE_SECONDS:
        raise InspectError(
            f"last is {text[:16]!r}; it is a time up to {MAX_TIMELINE_SECONDS:g}s, such as 30s", 422
        )
    return seconds
