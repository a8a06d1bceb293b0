"""/v1/chat/completions/batch: several conversations in one request, with the same parameters."""

import asyncio

from fastapi import APIRouter, Request, Response

from vllm_obs.server.answer import answer
from vllm_obs.server.body import read_body
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.chat_reply import ChatShape, ShownPrompt
from vllm_obs.server.generation import Call, Generation, Prompt
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.routes_chat import encode_messages, prompt_is_messages
from vllm_obs.server.schema_chat_batch import BatchChatRequest
from vllm_obs.server.state import ApiServer


def chat_batch_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server."""
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions/batch", **describe(BatchChatRequest))
    async def create_chat_completions(http: Request) -> Response:
        """Answer several conversations; choice `n * conversation + sequence` belongs to that one."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(BatchChatRequest, body, api)
        model = api.served_name(request.model)
        call = Call.of(http.scope, request, model)
        chats = request.chats()
        call.check_num_sequences(api, len(chats), request.n, "messages")
        reading = ChatReading.of(api, chats[0])
        prompts: list[Prompt] = []
        readings: list[ChatReading] = []
        for chat in chats:
            prompt, call.rendered_at = await encode_messages(api, chat)
            prompts.append(prompt)
            readings.append(reading.after(api, prompt))
            await asyncio.sleep(0)
        with prompt_is_messages(request.engine_names()):
            generation = await Generation.submit(api, call, prompts, reading.params(chats[0], api))
        head = ReplyHead.of(api, http.scope, "chatcmpl", request.object_name(), model)
        shown = ShownPrompt([chat.echoed() for chat in chats])
        shape = ChatShape(chats[0], head, LogprobShapes.of(api, request), readings, shown)
        return await answer(http, api, request, generation, shape)

    return router
