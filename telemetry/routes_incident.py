"""Inspector routes of incidents: what went wrong in this run, and everything that was kept of it."""

import asyncio
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from vllm_obs.telemetry.incident_reader import read_incident
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.inspect_context import Answer, InspectContext, InspectError


def incident_router(context: InspectContext) -> APIRouter:
    """The routes, over one Observer."""
    router = APIRouter()
    shelf = IncidentShelf(context.config.run_dir) if context.observer.is_live else None

    @router.get("/inspect/incidents", summary="Deaths, stalls and failed steps of this run, oldest first")
    async def incidents() -> Response:
        kept = await asyncio.to_thread(shelf.documents) if shelf is not None else []
        return Answer({"incidents": [_of_document(document) for document in kept] if kept else _recorded(context)})

    @router.get("/inspect/incidents/{name}", summary="One incident: steps, open requests, processes, stacks, logs")
    async def incident(name: str) -> Response:
        found = await asyncio.to_thread(read_incident, shelf, name) if shelf is not None else None
        if found is None:
            raise InspectError(f"no incident {name[:64]!r} is kept here", 404)
        return Answer(found)

    return router


def _recorded(context: InspectContext) -> list[dict[str, Any]]:
    return [filed._asdict() for filed in context.incidents.all()] if context.incidents is not None else []


def _of_document(document: dict[str, Any]) -> dict[str, Any]:
    culprit = document.get("culprit", {})
    return {
        "incident": document.get("name", ""),
        "cause": document.get("cause", ""),
        "role": culprit.get("role", ""),
        "pid": culprit.get("pid", 0),
        "says": document.get("says", ""),
        "happened_at": document.get("happened", {}).get("monotonic_at", 0),
        "filed_at": document.get("filed", {}).get("monotonic_at", 0),
    }
