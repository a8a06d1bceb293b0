"""/v1/completions/render and /v1/chat/completions/render: what a request would run, and nothing runs."""

import asyncio
from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.frontend.input_processor import PreparedPrompt
from vllm_obs.engine.sampling_params import SamplingParams
from vllm_obs.server.body import read_body
from vllm_obs.server.chat_reading import ChatReading
from vllm_obs.server.generation import Call
from vllm_obs.server.generation_defaults import parse_generation
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import describe
from vllm_obs.server.routes_chat import encode_messages, prompt_is_messages
from vllm_obs.server.routes_completion import prompts_of
from vllm_obs.server.schema_chat import ChatCompletionRequest
from vllm_obs.server.schema_completion import CompletionRequest
from vllm_obs.server.state import ApiServer

NOT_SAMPLING = frozenset({"detokenize", "pooling"})
"""Fields of SamplingParams that no request of these routes can set."""


def render_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server."""
    router = APIRouter(tags=["render"])

    @router.post("/v1/completions/render", **describe(CompletionRequest))
    async def render_completion(http: Request) -> Response:
        """The prompts of a completion as they would run, one object each."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(CompletionRequest, body, api)
        call = Call.of(http.scope, request, api.served_name(request.model))
        call.check_num_sequences(api, len(request.prompt), request.n)
        rendered = []
        for index, prompt in enumerate(await prompts_of(api, request)):
            prepared = await api.engine.llm.prepare(prompt, request.params(), num_prompts=len(request.prompt))
            shown = await _rendered(api, call, prepared, request.params())
            rendered.append({"request_id": f"cmpl-{call.label}-{index}", **shown})
            await asyncio.sleep(0)
        return JsonReply(rendered)

    @router.post("/v1/chat/completions/render", **describe(ChatCompletionRequest))
    async def render_chat_completion(http: Request) -> Response:
        """The prompt of a conversation as it would run."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_generation(ChatCompletionRequest, body, api)
        call = Call.of(http.scope, request, api.served_name(request.model))
        call.check_num_sequences(api, 1, request.n, "messages")
        params = ChatReading.of(api, request).params(request, api)
        chat, _ = await encode_messages(api, request)
        with prompt_is_messages():
            prepared = await api.engine.llm.prepare(chat, params)
        return JsonReply({"request_id": f"chatcmpl-{call.label}", **await _rendered(api, call, prepared, params)})

    return router


async def _rendered(
    api: ApiServer, call: Call, prepared: PreparedPrompt, params: SamplingParams
) -> dict[str, Any]:
    """A prompt's ids with their text, and how it would be sampled: `max_tokens` is what fits."""
    decode = api.engine.tokenizer.decode
    text = await asyncio.to_thread(decode, prepared.token_ids, skip_special_tokens=False)
    sampling = asdict(replace(params, max_tokens=prepared.max_tokens))
    if params.logit_bias is not None:
        sampling["logit_bias"] = {str(token_id): bias for token_id, bias in params.logit_bias.items()}
    return {
        "model": call.model,
        "prompt": text,
        "token_ids": prepared.token_ids,
        "sampling_params": {name: value for name, value in sampling.items() if name not in NOT_SAMPLING},
        "stream": call.stream,
        "priority": call.priority,
        "cache_salt": call.cache_salt,
    }
