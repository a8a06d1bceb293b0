"""Responses: what /v1/responses does, behind its routes."""

import asyncio
import time
from functools import partial
from typing import NamedTuple

import orjson
from fastapi import Request, Response
from starlette.types import Scope

from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.errors import ApiError, shown
from vllm_obs.server.generation import Call, Generation
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.responses_builder import ResponseShape
from vllm_obs.server.responses_conversation import chat_messages
from vllm_obs.server.responses_events import EventLog
from vllm_obs.server.responses_prompt import encode, said_of_own_fields
from vllm_obs.server.responses_resource import Resource, ResourceHead
from vllm_obs.server.responses_run import BackgroundRun, LoggedStream, ResponseStream, whole_response
from vllm_obs.server.responses_store import Context, ResponseStore, StoredResponse, num_item_bytes
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_responses import ResponsesRequest
from vllm_obs.server.schema_responses_items import MAX_INPUT_ITEMS, InputItem
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import invalid

THREAD_FROM_ITEMS = 256
"""Conversations from this length on are made into chats in a thread."""


class Asked(NamedTuple):
    """A request, whose it is, and what it goes on from."""

    request: ResponsesRequest
    owner: str
    context: Context

    async def chat(self) -> ChatCompletionRequest:
        """The question as a chat. ApiError 400 where a field does not fit."""
        if len(self.context.items) < THREAD_FROM_ITEMS:
            return self._chat()
        return await asyncio.to_thread(self._chat)

    def _chat(self) -> ChatCompletionRequest:
        items = map(orjson.loads, self.context.items)
        return self.request.for_chat(chat_messages(self.request.instructions, items))


class Prepared(NamedTuple):
    """A request that the engine works on."""

    generation: Generation
    shape: ResponseShape


class Running(NamedTuple):
    """A response that is being made in the background."""

    asked: Asked
    run: BackgroundRun


class Responses:
    """Makes responses and keeps them. `runs` are those that are being made in the background, by their id.

    One of several API servers keeps none: the next request may come to another, which would not know it.
    """

    def __init__(self, api: ApiServer) -> None:
        limits = api.server.limits
        self.store = ResponseStore(limits.max_stored_responses, limits.max_stored_response_bytes)
        self.runs: dict[str, Running] = {}
        self._api = api
        self._num_servers = api.server.api_server_count
        self._max_runs = limits.max_background_responses

    async def count_tokens(self, scope: Scope, request: ResponsesRequest) -> int:
        """How many tokens the request's prompt has."""
        self._api.served_name(request.model)
        with said_of_own_fields():
            chat = await self._asked(scope, request).chat()
            ChatReading.of(self._api, chat)
            return len((await encode(self._api, request, chat)).token_ids)

    async def create(self, http: Request, request: ResponsesRequest) -> Response:
        """The reply to a request for a response."""
        if self._num_servers > 1:
            request = self._unstored(request)
        if request.background:
            self._api.pressure.check(is_background=True)
            self._check_room()
        asked = self._asked(http.scope, request)
        generation, shape = await self._prepare(http.scope, asked)
        if request.background:
            return await self._in_background(asked, generation, shape)
        keep = partial(self._keep, asked)
        if request.stream:
            return ResponseStream(generation, shape, keep)
        metrics = ReplyMetrics(self._api.server.enable_per_request_metrics, 1, generation.arrived)
        whole = await whole_response(http.receive, generation, shape, metrics)
        keep(whole)
        return JsonReply(whole | {"metrics": metrics.fields()} if metrics.is_enabled else whole)

    def stored(self, owner: str, response_id: str, param: str | None = None) -> StoredResponse:
        """A response that has ended; ApiError 404 where this owner has none by that id."""
        stored = self.store.get(owner, response_id)
        if stored is None:
            message = f"there is no response {shown(response_id)} here{self._why_none()}"
            raise ApiError(message, "not_found", param=param)
        return stored

    def _why_none(self) -> str:
        return f": {self._num_servers} API servers share the port and store none" if self._num_servers > 1 else ""

    def _unstored(self, request: ResponsesRequest) -> ResponsesRequest:
        if request.background:
            message = f"background: {self._num_servers} API servers share the port and keep no responses"
            raise ApiError(message, "unsupported", param="background")
        return request.model_copy(update={"store": False})

    def running(self, owner: str, response_id: str) -> BackgroundRun | None:
        """A response of this owner's that is being made in the background."""
        running = self.runs.get(response_id)
        return running.run if running is not None and running.asked.owner == owner else None

    def context(self, owner: str, response_id: str) -> Context:
        """What a response was, or is being, made from; ApiError 404."""
        running = self.runs.get(response_id)
        if running is not None and running.asked.owner == owner:
            return running.asked.context
        return self.stored(owner, response_id).context

    def _asked(self, scope: Scope, request: ResponsesRequest) -> Asked:
        """The request with its context. ApiError where that is not there, or too large."""
        owner, before = owner_of(scope), tuple[bytes, ...]()
        if request.previous_response_id is not None:
            before = self._history(owner, request.previous_response_id)
        if len(before) + len(request.input) > MAX_INPUT_ITEMS:
            raise invalid("input", f"with the turns before it has more than {MAX_INPUT_ITEMS} items")
        own = [self._item(owner, item, place) for place, item in enumerate(request.input)]
        context = Context((*before, *own), len(before))
        num_bytes, limit = num_item_bytes(context.items), self.store.max_bytes // 2
        if request.store and num_bytes > limit:
            message = f"input: {num_bytes} bytes are over the limit of {limit} for what is stored; see store=false"
            raise ApiError(message, "too_large", param="input")
        return Asked(request, owner, context)

    def _history(self, owner: str, response_id: str) -> tuple[bytes, ...]:
        if self.running(owner, response_id) is not None:
            raise ApiError("the response is still being made", "conflict", param="previous_response_id")
        return self.stored(owner, response_id, "previous_response_id").history

    def _item(self, owner: str, item: InputItem, place: int) -> bytes:
        """The item as it is stored; for a reference the item that it names."""
        if item.type != "item_reference":
            return orjson.dumps(item.kept())
        found = self.store.item(owner, item.id or "")
        if found is None:
            message = f"there is no item {shown(item.id or '')} here{self._why_none()}"
            raise ApiError(message, "not_found", param=f"input[{place}].id")
        return found

    async def _prepare(self, scope: Scope, asked: Asked) -> Prepared:
        """Give the question to the engine."""
        api, request = self._api, asked.request
        model = api.served_name(request.model)
        call = Call.of(scope, request, model)
        with said_of_own_fields():
            chat = await asked.chat()
            reading = ChatReading.of(api, chat)
            prompt, call.rendered_at = await encode(api, request, chat)
            reading = reading.after(api, prompt)
            generation = await Generation.submit(api, call, [prompt], reading.params(chat, api))
        head = ResourceHead(f"resp_{call.request_id}", api.wall_time(call.received_at), model, request)
        logprobs = LogprobShapes.of(api, request)
        return Prepared(generation, ResponseShape(head, reading, logprobs, self._now))

    def _check_room(self) -> None:
        if len(self.runs) >= self._max_runs:
            raise ApiError(f"{self._max_runs} responses are being made in the background", "under_pressure")

    async def _in_background(self, asked: Asked, generation: Generation, shape: ResponseShape) -> Response:
        try:
            self._check_room()  # others may have come since
        except ApiError:
            await generation.aclose()
            raise
        response_id = shape.head.id
        run = BackgroundRun(self._api, generation, shape, partial(self._end_run, asked, response_id))
        self.runs[response_id] = Running(asked, run)
        if run.log is not None:
            return LoggedStream(run.log, -1, generation.request_id)
        return Response(run.queued, media_type="application/json")

    def _end_run(self, asked: Asked, response_id: str, resource: Resource) -> None:
        self._keep(asked, resource, self.runs.pop(response_id).run.log)

    def _keep(self, asked: Asked, resource: Resource, log: EventLog | None = None) -> None:
        if asked.request.store:
            self.store.put(asked.owner, resource["id"], StoredResponse.of(resource, asked.context, log))

    def _now(self) -> int:
        return self._api.wall_time(time.monotonic_ns())


def owner_of(scope: Scope) -> str:
    """Whose a request is; empty where the server has no keys."""
    return str(scope["state"].get("owner", ""))
