"""Inspector routes of telemetry itself: what is in force, what it costs and loses, and orders to change it."""

import asyncio
from typing import Any

from vllm_obs.telemetry.inspect_context import InspectContext
from vllm_obs.telemetry.inspect_parameters import Asked
from vllm_obs.telemetry.inspect_reply import Answer, InspectError, Reply
from vllm_obs.telemetry.inspect_router import Router
from vllm_obs.telemetry.inspect_telemetry import telemetry_report
from vllm_obs.telemetry.observer_config import MAX_DETAIL_LEVEL
from vllm_obs.telemetry.telemetry_control import OrderError, TelemetryOrder

MAX_BODY_BYTES = 4096
BODY_SECONDS = 2.0

_ORDER_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "detail_level": {
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_DETAIL_LEVEL,
            "description": "0 no traces, 1 requests, 2 their stages too, 3 the steps they ran in too",
        },
        "sample_rate": {
            "type": "number",
            "minimum": 0,
            "maximum": 1,
            "description": "share of requests traced that their caller has not decided on",
        },
    },
}
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": _ORDER_SCHEMA}}}
}


def telemetry_router(context: InspectContext) -> Router:
    """The routes, over one Observer."""
    router = Router()

    @router.get("/inspect/telemetry", summary="Detail and sampling in force, spans sent and lost, and the cost")
    async def report() -> Reply:
        return Answer(telemetry_report(context))

    @router.post(
        "/inspect/telemetry",
        summary="Change detail level, sample rate or both on the live server",
        extra=_BODY,
    )
    async def order(asked: Asked) -> Reply:
        body = await read_json_body(asked)
        try:
            await context.control.obey(TelemetryOrder.read(body))
        except OrderError as error:
            raise InspectError(str(error), error.status) from None
        return Answer(telemetry_report(context))

    return router


async def read_json_body(asked: Asked) -> bytes:
    """The body, bounded in size and time. InspectError where it is not said to be JSON.

    A page of another origin can send a form here without asking first, but nothing that is called JSON.
    """
    kind = asked.header("content-type").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise InspectError("the content-type must be application/json", 415)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in asked.parts():
                body += part
                if len(body) > MAX_BODY_BYTES:
                    raise InspectError(f"the body is over {MAX_BODY_BYTES} bytes", 413)
    except TimeoutError:
        raise InspectError(f"the body has not come within {BODY_SECONDS:g} s", 408) from None
    return bytes(body)
