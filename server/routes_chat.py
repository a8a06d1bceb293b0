"""/v1/chat/completions."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.errors import RequestError
from vllm_obs.engine.frontend.chat_template import EncodedChat
from vllm_obs.engine.frontend.content_form import content_form
from vllm_obs.server.answer import answer
from vllm_obs.server.body import read_body
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.chat_reply import ChatShape, ShownPrompt
from vllm_obs.server.client_names import said_of
from vllm_obs.server.generation import Call, Generation
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.logprobs import LogprobShapes
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_template import TemplateRequest
from vllm_obs.server.state import ApiServer


def chat_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server."""
    router = APIRouter(tags=["chat"])

    @router.post("/v1/chat/completions", **describe(ChatCompletionRequest, streams=True))
    async def create_chat_completion(http: Request) -> Response:
        """Answer a conversation."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(ChatCompletionRequest, body, api)
        model = api.served_name(request.model)
        call = Call.of(http.scope, request, model)
        call.check_num_sequences(api, 1, request.n, "messages")
        reading = ChatReading.of(api, request)
        prompt, call.rendered_at = await encode_messages(api, request)
        reading = reading.after(api, prompt)
        shown = ShownPrompt((request.echoed(),), await prompt_text(api, request, prompt))
        with prompt_is_messages(request.engine_names()):
            generation = await Generation.submit(api, call, [prompt], reading.params(request, api))
        head = ReplyHead.of(api, http.scope, "chatcmpl", request.object_name(), model)
        shapes = LogprobShapes.of(api, request)
        return await answer(http, api, request, generation, ChatShape(request, head, shapes, [reading], shown))

    return router


async def encode_messages(api: ApiServer, request: TemplateRequest, is_answered: bool = True) -> EncodedChat:
    """The token ids of a conversation; ApiError when the template refuses it or it cannot fit.

    Also where it is to be answered, and the model makes no text.
    """
    engine = api.engine
    form = content_form(api.server.chat_template_content_format, engine.chat_template.natural_form)
    with prompt_is_messages():
        if is_answered:
            engine.llm.inputs.check_generates()
        engine.llm.inputs.check_num_chars(sum(message.num_side_chars for message in request.messages))
        messages = [message.for_template(form) for message in request.messages]
        return await engine.llm.inputs.encode_chat(engine.chat_template, messages, **request.template_options())


async def prompt_text(api: ApiServer, request: ChatCompletionRequest, token_ids: list[int]) -> str | None:
    """What the template made of the messages, where the client asks for it."""
    if not request.return_prompt_text:
        return None
    return await asyncio.to_thread(api.engine.tokenizer.decode, token_ids, skip_special_tokens=False)


@contextmanager
def prompt_is_messages(names: Mapping[str, str] | None = None) -> Iterator[None]:
    """What the engine has against the prompt, or a field in `names`, is said of what it was made from."""
    try:
        yield
    except RequestError as error:
        raise said_of(error, {"prompt": "messages", **(names or {})}) from error
