"""/v1/responses: made, asked for again, cancelled, forgotten."""

from typing import Any

import orjson
from fastapi import APIRouter, Request, Response

from vllm_obs.server.body import read_body
from vllm_obs.server.errors import ApiError
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import describe, errors
from vllm_obs.server.responses_queries import MAX_PAGE, ItemPage, StreamQuery
from vllm_obs.server.responses_run import LoggedStream
from vllm_obs.server.responses_service import Responses, owner_of
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import invalid

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"
PAGE = {"type": "integer", "minimum": 1, "maximum": MAX_PAGE}


def responses_router(api: ApiServer) -> APIRouter:
    """The routes, with what they keep."""
    router = APIRouter(tags=["responses"])
    responses = Responses(api)

    async def read(http: Request) -> ResponsesRequest:
        body = await read_body(http.scope, http.receive, api.server.limits)
        return await parse_generation(ResponsesRequest, body, api)

    @router.post(PATH, **describe(ResponsesRequest, streams=True))
    async def create_response(http: Request) -> Response:
        """Go on with a conversation."""
        return await responses.create(http, await read(http))

    @router.post(PATH + "/input_tokens", **describe(ResponsesRequest))
    async def count_input_tokens(http: Request) -> Response:
        """How many tokens a conversation has."""
        num_tokens = await responses.count_tokens(http.scope, await read(http))
        return JsonReply({"object": "response.input_tokens", "input_tokens": num_tokens})

    @router.post(PATH + "/compact", responses=errors())
    async def compact_response() -> Response:
        """Conversations are not made shorter here."""
        raise ApiError("conversations are not compacted by this server", "not_found")

    @router.get(ONE, **_reads(stream={"type": "boolean"}, starting_after={"type": "integer", "minimum": 0}))
    async def retrieve_response(http: Request, response_id: str) -> Response:
        """A response as it is now; with `stream` its events, if it is one that was streamed in the background."""
        query, owner = StreamQuery.of(http.query_params), owner_of(http.scope)
        run = responses.running(owner, response_id)
        if query.is_wanted:
            log = run.log if run is not None else responses.stored(owner, response_id).log
            if log is None:
                raise invalid("stream", "this response was not asked for with background=true and stream=true")
            return LoggedStream(log, query.after, http.scope["state"]["request_id"])
        return (
            JsonReply(run.resource()) if run is not None else _json(responses.stored(owner, response_id).resource)
        )

    @router.post(ONE + "/cancel", responses=errors())
    async def cancel_response(http: Request, response_id: str) -> Response:
        """End a response that is made in the background; one that has ended stays as it is."""
        owner = owner_of(http.scope)
        if (run := responses.running(owner, response_id)) is not None:
            await run.cancel()
        stored = responses.stored(owner, response_id)
        if not stored.is_background:
            raise invalid("response_id", "only a response with background=true can be cancelled")
        return _json(stored.resource)

    @router.delete(ONE, responses=errors())
    async def delete_response(http: Request, response_id: str) -> Response:
        """Forget a response; one that is being made is cancelled first."""
        owner = owner_of(http.scope)
        if (run := responses.running(owner, response_id)) is not None:
            await run.cancel()
        responses.stored(owner, response_id)
        responses.store.delete(owner, response_id)
        return JsonReply({"id": response_id, "object": "response", "deleted": True})

    @router.get(
        ONE + "/input_items", **_reads(limit=PAGE, order={"enum": ["asc", "desc"]}, after={"type": "string"})
    )
    async def list_input_items(http: Request, response_id: str) -> Response:
        """What a response was made from, a page of it."""
        page = ItemPage.of(http.query_params)
        items = responses.context(owner_of(http.scope), response_id).items
        return JsonReply(page.reply([orjson.loads(item) for item in items]))

    return router


def _reads(**queries: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a route whose query is read by hand, as bodies are."""
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in queries.items()]
    return {"openapi_extra": {"parameters": parameters}, "responses": errors()}


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")
