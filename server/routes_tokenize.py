"""/tokenize and /detokenize."""

import asyncio

from fastapi import APIRouter, Request, Response

from vllm_obs.server.body import read_body
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import describe
from vllm_obs.server.routes_chat import encode_messages
from vllm_obs.server.schema_tokenize import (
    AnyTokenizeRequest,
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizeRequest,
)
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_either, parse_request

Kinds = dict[str, type[AnyTokenizeRequest]]


def tokenize_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server."""
    router = APIRouter(tags=["tokenize"])

    @router.post("/tokenize", **describe(TokenizeRequest, TokenizeChatRequest))
    async def tokenize(http: Request) -> Response:
        """Token ids of a text, or of a conversation."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        kinds: Kinds = {"messages": TokenizeChatRequest, "prompt": TokenizeRequest}
        request = await parse_either(kinds, body, api.server.limits.max_json_depth)
        api.served_name(request.model)
        tokens = await _encode(api, request)
        token_strs = map(api.engine.tokenizer.token_str, tokens)
        return JsonReply(
            {
                "count": len(tokens),
                "max_model_len": api.engine.facts.max_model_len,
                "tokens": tokens,
                "token_strs": list(token_strs) if request.return_token_strs else None,
            }
        )

    @router.post("/detokenize", **describe(DetokenizeRequest))
    async def detokenize(http: Request) -> Response:
        """The text of token ids."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_request(DetokenizeRequest, body, api.server.limits.max_json_depth)
        api.served_name(request.model)
        decode = api.engine.tokenizer.decode  # a million ids are looked at for a tenth of a second
        text = await asyncio.to_thread(decode, request.tokens, skip_special_tokens=False)
        return JsonReply({"prompt": text})

    return router


async def _encode(api: ApiServer, request: AnyTokenizeRequest) -> list[int]:
    if isinstance(request, TokenizeChatRequest):
        return (await encode_messages(api, request)).token_ids
    assert isinstance(request, TokenizeRequest)
    return await api.engine.llm.inputs.encode(request.prompt, add_special_tokens=request.add_special_tokens)
