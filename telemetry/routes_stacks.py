"""Inspector routes that take stacks: of every process of the run, or of one. POST, since they send a signal."""

import asyncio
from collections.abc import Collection
from typing import Annotated, Any

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Asked, Bounds
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.routes_telemetry import read_json_body
from vllm_obs.telemetry.stack_text import threads_of
from vllm_obs.telemetry.stacks import ProcessStacks, live_processes, stacks_of

MAX_PID = 2**22
TURN_SECONDS = 15.0

_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
}


def stacks_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    turn = asyncio.Lock()

    @router.post("/inspect/stacks", summary="The Python stacks of every process, taken now", extra=_BODY)
    async def all_stacks(asked: Asked) -> Reply:
        await read_json_body(asked)
        return await take(None)

    @router.post(
        "/inspect/processes/{pid}/stacks",
        summary="The Python stacks of one process, taken now",
        extra=_BODY,
    )
    async def one_process(asked: Asked, pid: Annotated[int, Bounds(ge=1, le=MAX_PID)]) -> Reply:
        await read_json_body(asked)
        return await take((pid,))

    async def take(pids: Collection[int] | None) -> Reply:
        if not context.observer.is_live:
            raise InspectError("this is a recording: its processes have ended", 409)
        run_dir = context.config.run_dir
        try:
            # In turn: each holds a thread for as long as it takes.
            async with asyncio.timeout(TURN_SECONDS), turn:
                if pids is not None and not set(pids) & {pid for _, pid in live_processes(run_dir)}:
                    raise InspectError(f"no live process of this run has pid {next(iter(pids))}", 404)
                taken = await asyncio.to_thread(stacks_of, run_dir, pids)
        except TimeoutError:
            raise InspectError(f"the stacks have not come within {TURN_SECONDS:g} s", 504) from None
        except asyncio.CancelledError:
            # The inspector ends, and whoever asked is told; it would log a traceback otherwise.
            raise InspectError("the inspector ends; the stacks have not come", 503) from None
        return Answer({"processes": [_row(stacks) for stacks in taken]})

    return router


def _row(stacks: ProcessStacks) -> dict[str, Any]:
    """One process; `how` is null where nothing was to be had, and `says` tells why."""
    threads = [thread._asdict() for thread in threads_of(stacks.text)]
    return {**stacks._asdict(), "how": stacks.how or None, "threads": threads}
