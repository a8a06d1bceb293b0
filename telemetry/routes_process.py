"""Inspector routes of processes, and of what lies between them."""

import os
from typing import Any

from vllm_obs.telemetry.device_view import devices_view
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_edges import edges_view
from vllm_obs.telemetry.inspect_processes import processes_view
from vllm_obs.telemetry.inspect_reply import Answer, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.memory_room import MemoryRoomReader


def process_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    observer = context.observer

    @router.get("/inspect/processes", summary="Every process: title, what it does now, heartbeat, CPU and memory")
    async def processes() -> Reply:
        run_dir = context.config.run_dir if observer.is_live else None
        rows = processes_view(observer.state.processes, run_dir, observer.now(), context.rates)
        return Answer({"processes": rows, "memory": _memory() if run_dir else None})

    @router.get("/inspect/edges", summary="What is on its way between processes, and how long it takes")
    async def edges() -> Reply:
        return Answer(edges_view(observer.state, observer.now()))

    @router.get("/inspect/devices", summary="The GPUs: use, memory, power, clocks, and what holds them down")
    async def devices() -> Reply:
        return Answer(devices_view(context.devices, observer.now()))

    return router


def _memory() -> dict[str, Any]:
    """What the run's processes may use together, as the Observer's own control group or the machine says."""
    return MemoryRoomReader().read(os.getpid())._asdict()
