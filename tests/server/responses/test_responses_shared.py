"""Of several API servers on one port none keeps responses: the next request may come to another."""

import asyncio
from typing import Any

from http_app import served
from responses_client import HI, PATH, saying

from vllm_obs.server.config import ServerConfig

SHARED = ServerConfig(api_server_count=4)


def replies(*bodies: dict[str, Any]) -> list[Any]:
    async def scenario() -> list[Any]:
        async with served(saying("Hello you"), SHARED) as app:
            found = []
            for body in bodies:
                reply = await app.post(PATH, body)
                found.append((reply.status_code, reply.json()))
            found_id = found[0][1].get("id", "resp_none")
            again = await app.client.get(f"{PATH}/{found_id}")
            return [*found, (again.status_code, again.json())]

    return asyncio.run(scenario())


def error(status: int, reason: str, message: str, param: str | None = None) -> Any:
    kinds = {400: "BadRequestError", 404: "NotFoundError"}
    body = {"message": message, "type": kinds[status], "param": param, "code": status, "reason": reason}
    return status, {"error": body}


def test_a_response_says_that_it_is_not_stored_and_cannot_be_asked_for_again() -> None:
    (status, whole), again = replies(HI)
    assert (status, whole["status"], whole["store"]) == (200, "completed", False)
    none = f"there is no response '{whole['id']}' here: 4 API servers share the port and store none"
    assert again == error(404, "not_found", none)


def test_what_needs_a_stored_response_is_refused_with_the_reason() -> None:
    background, previous, item, _ = replies(
        {**HI, "background": True},
        {**HI, "previous_response_id": "resp_1"},
        {**HI, "input": [{"type": "item_reference", "id": "msg_1"}]},
    )
    told = "4 API servers share the port and"
    assert background == error(400, "unsupported", f"background: {told} keep no responses", "background")
    none = f"here: {told} store none"
    assert previous == error(404, "not_found", f"there is no response 'resp_1' {none}", "previous_response_id")
    assert item == error(404, "not_found", f"there is no item 'msg_1' {none}", "input[0].id")
