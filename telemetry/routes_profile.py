"""Inspector routes of profiles: the order to take one, what there is, tables, and files to download."""

import asyncio
from typing import Any

from starlette.types import ASGIApp

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Asked
from vllm_obs.telemetry.inspect_reply import Answer, InspectError
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.profile_book import WRITTEN, Profile
from vllm_obs.telemetry.profile_control import KINDS, MAX_SECONDS, MAX_STEPS, ProfileControl, ProfileOrder
from vllm_obs.telemetry.profile_files import ProfileFile
from vllm_obs.telemetry.routes_telemetry import read_json_body
from vllm_obs.telemetry.sample_choice import SAMPLERS
from vllm_obs.telemetry.sample_merge import read_table
from vllm_obs.telemetry.sample_stacks import MAX_RATE_HZ
from vllm_obs.telemetry.telemetry_control import OrderError

_ORDER_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "kind": {
            "type": "string",
            "enum": list(KINDS),
            "description": "operators of the workers, or stack samples",
        },
        "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_SECONDS},
        "steps": {"type": "integer", "minimum": 1, "maximum": MAX_STEPS},
        "sampler": {
            "type": "string",
            "enum": list(SAMPLERS),
            "description": "who takes samples: py-spy from outside, each process itself, or py-spy where it may",
        },
        "rate_hz": {"type": "number", "minimum": 1, "maximum": MAX_RATE_HZ},
    },
}
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _ORDER_SCHEMA}}}
}


def profile_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()
    control = context.profiles

    @router.post("/inspect/profile", summary="Profile the live server for some time", extra=_BODY)
    async def begin(asked: Asked) -> ASGIApp:
        try:
            order = ProfileOrder.read(await read_json_body(asked))
            profile = await control.begin(order)
        except OrderError as error:
            raise InspectError(str(error), error.status) from None
        return Answer(_shown(control, profile, context.observer.now()))

    @router.get("/inspect/profiles", summary="The profiles of this run, newest first, with their files")
    async def profiles() -> ASGIApp:
        now = context.observer.now()
        return Answer({"profiles": await asyncio.to_thread(_all_shown, control, now)})

    @router.get("/inspect/profiles/{name}", summary="One profile: its state, its tables and its files")
    async def profile(name: str) -> ASGIApp:
        found = await asyncio.to_thread(_detail, control, name, context.observer.now())
        if found is None:
            raise InspectError("no profile of this name is known; GET /inspect/profiles lists them", 404)
        return Answer(found)

    @router.get("/inspect/profiles/{name}/{file}", summary="One file of a profile")
    async def download(name: str, file: str) -> ASGIApp:
        files = await asyncio.to_thread(control.files.files, name)
        found = next((each for each in files if each.name == file), None)
        if found is None:
            raise InspectError("no file of this name is known; GET /inspect/profiles lists them", 404)
        from starlette.responses import FileResponse  # only who downloads pays for loading it

        return FileResponse(found.path, filename=found.name, headers={"cache-control": "no-store"})

    return router


def _all_shown(control: ProfileControl, now: int) -> list[dict[str, Any]]:
    """Those of which records tell, and those of which there are only files."""
    known = [_shown(control, profile, now) for profile in reversed(list(control.book.profiles.values()))]
    names = {row["profile"] for row in known}
    return [*known, *(_of_files(control, name) for name in control.files.names() if name not in names)]


def _shown(control: ProfileControl, profile: Profile, now: int) -> dict[str, Any]:
    return profile.shown(now) | _files(control, profile.name)


def _of_files(control: ProfileControl, name: str) -> dict[str, Any]:
    kind = name.rpartition("-")[2] if name.endswith(KINDS) else None
    row: dict[str, Any] = {"profile": name, "kind": kind, "state": WRITTEN, "begun_at": None}
    row |= {"max_seconds": None, "max_steps": None, "parts": []}
    return row | _files(control, name)


def _files(control: ProfileControl, name: str) -> dict[str, Any]:
    files = control.files.files(name)
    shown = [_shown_file(file) for file in files]
    return {"directory": str(control.files.base / name) if files else None, "files": shown}


def _shown_file(file: ProfileFile) -> dict[str, Any]:
    return {"name": file.name, "num_bytes": file.num_bytes}


def _detail(control: ProfileControl, name: str, now: int) -> dict[str, Any] | None:
    profile = control.book.profiles.get(name)
    if profile is not None:
        row = _shown(control, profile, now)
    elif control.files.files(name):
        row = _of_files(control, name)
    else:
        return None
    sampling = read_table(control.files.base / name) if row["files"] else None
    samples = sampling.pop("roles") if sampling else None
    return row | {"operators": control.files.tables(name), "samples": samples, "sampling": sampling}
