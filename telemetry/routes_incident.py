"""Inspector routes of incidents: what went wrong in this run, and everything that was kept of it."""

import asyncio
from typing import Any

from vllm_obs.telemetry.incident_mending import mended, mended_content
from vllm_obs.telemetry.incident_reader import read_parts
from vllm_obs.telemetry.incident_shelf import IncidentShelf
from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router


def incident_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    shelf = context.shelf

    @router.get("/inspect/incidents", summary="Deaths, stalls and failed steps of this run, oldest first")
    async def incidents() -> Reply:
        kept = await asyncio.to_thread(_documents, shelf) if shelf is not None else []
        return Answer({"incidents": _merged([_of_document(document) for document in kept], _recorded(context))})

    @router.get("/inspect/incidents/{name}", summary="One incident: steps, open requests, processes, stacks, logs")
    async def incident(name: str) -> Reply:
        found = await asyncio.to_thread(_whole, shelf, name) if shelf is not None else None
        if found is None:
            raise InspectError(f"no incident {name[:64]!r} is kept here", 404)
        return Answer(found)

    return router


def _recorded(context: InspectContext) -> list[dict[str, Any]]:
    return [filed._asdict() for filed in context.incidents.all()] if context.incidents is not None else []


def _documents(shelf: IncidentShelf) -> list[dict[str, Any]]:
    return [mended(shelf.read(name), name, shelf.path.parent.name) for name in shelf.names()]


def _whole(shelf: IncidentShelf, name: str) -> dict[str, Any] | None:
    """All of an incident that can be read; None where there is none of that name."""
    if name not in shelf.names():
        return None
    # Its document may be damaged, and the other files be whole.
    content = {"incident": shelf.read(name), **read_parts(shelf, name)}
    return mended_content(content, name, shelf.path.parent.name)


def _merged(kept: list[dict[str, Any]], recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What is on the shelf, and what has had no room there; of a recording, which has none, all that it tells."""
    names = {row["incident"] for row in kept}
    unwritten = [row for row in recorded if row["incident"] not in names and (not kept or not row["filed_at"])]
    return sorted([*kept, *unwritten], key=lambda row: row["happened_at"]) if unwritten else kept


def _of_document(document: dict[str, Any]) -> dict[str, Any]:
    culprit, filed, ended = document["culprit"], document.get("filed"), document.get("ended")
    return {
        "incident": document["name"],
        "cause": document["cause"],
        "role": culprit["role"],
        "pid": culprit["pid"],
        "says": document["says"],
        "happened_at": document["happened"]["monotonic_at"],
        "filed_at": filed.get("monotonic_at", 0) if isinstance(filed, dict) else 0,
        "ended_at": ended.get("monotonic_at") if isinstance(ended, dict) else None,
    }
