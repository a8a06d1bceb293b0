"""/v1/messages and /v1/messages/count_tokens, for clients of Anthropic's API."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.errors import RequestError
from vllm_obs.server.anthropic_chat import as_chat
from vllm_obs.server.anthropic_paths import COUNT_TOKENS, MESSAGES
from vllm_obs.server.anthropic_reply import MessageEvents, MessageHead, whole_message
from vllm_obs.server.body import read_body
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.client_names import said_of
from vllm_obs.server.disconnect import until_disconnect
from vllm_obs.server.errors import ApiError
from vllm_obs.server.generation import Call, Generation
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import describe
from vllm_obs.server.pushed_stream import PushedStream
from vllm_obs.server.reply_metrics import ReplyMetrics
from vllm_obs.server.routes_chat import encode_messages
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_messages import CountTokensRequest, MessagesRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_request

OWN_NAMES = {"prompt": "messages", "stop": "stop_sequences", "response_format": "output_config.format"}
"""What the engine and chats call a field, and what it is called here."""


def messages_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server."""
    router = APIRouter(tags=["messages"])

    @router.post(MESSAGES, **describe(MessagesRequest, streams=True))
    async def create_message(http: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(MessagesRequest, body, api)
        model = api.served_name(request.model)
        with _own_names():
            chat = as_chat(request)
            call = Call.of(http.scope, chat, model)
            reading = ChatReading.of(api, chat)
            prompt, call.rendered_at = await encode_messages(api, chat)
            reading = reading.after(api, prompt)
            generation = await Generation.submit(api, call, [prompt], reading.params(chat, api))
        shows_cached = api.server.enable_prompt_tokens_details
        head = MessageHead(f"msg_{call.label}", model, reading, shows_cached, api.engine.tokenizer)
        return await _answer(http, api, chat, generation, head)

    @router.post(COUNT_TOKENS, **describe(CountTokensRequest))
    async def count_tokens(http: Request) -> Response:
        """Count the tokens of a conversation."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_request(CountTokensRequest, body, api.server.limits.max_json_depth)
        api.served_name(request.model)
        with _own_names():
            prompt, _ = await encode_messages(api, as_chat(request))
        return JsonReply({"input_tokens": len(prompt)})

    return router


async def _answer(
    http: Request, api: ApiServer, chat: ChatCompletionRequest, generation: Generation, head: MessageHead
) -> Response:
    """The reply, once it is ready to be sent; ClientGoneError when nobody waits for it any more."""
    metrics = ReplyMetrics(api.server.enable_per_request_metrics, generation.num_choices, generation.arrived)
    if chat.stream:
        events = MessageEvents(head, metrics)
        return PushedStream(events.frames(generation, http.scope["state"]), generation, events.written)
    try:
        choices = await until_disconnect(http.receive, generation.collect())
    finally:
        await generation.aclose()
    return JsonReply(whole_message(head, choices[0], metrics))


@contextmanager
def _own_names() -> Iterator[None]:
    """What is said against a field of the chat is said of the field that it was made from."""
    try:
        yield
    except (RequestError, ApiError) as error:
        raise said_of(error, OWN_NAMES) from error
