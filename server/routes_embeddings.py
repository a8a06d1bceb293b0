"""/v1/embeddings."""

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.pooling.vectors import check_dimensions, finished
from vllm_obs.server.body import read_body
from vllm_obs.server.embedding_reply import embedding_usage, embeddings_body
from vllm_obs.server.embedding_run import Texts, embed, pooling_call, prompts_are
from vllm_obs.server.generation import Call
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.request_id import adopt_label
from vllm_obs.server.routes_chat import encode_messages
from vllm_obs.server.schema_embeddings import AnyEmbeddingRequest, EmbeddingChatRequest, EmbeddingRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_either

KINDS: dict[str, type[AnyEmbeddingRequest]] = {"messages": EmbeddingChatRequest, "input": EmbeddingRequest}


def embeddings_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server."""
    router = APIRouter(tags=["embeddings"])

    @router.post("/v1/embeddings", **describe(EmbeddingRequest, EmbeddingChatRequest))
    async def create_embedding(http: Request) -> Response:
        """A vector of each text, or of a conversation."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_either(KINDS, body, api.server.limits.max_json_depth)
        adopt_label(http.scope["state"], request.request_id)
        head = ReplyHead.of(api, http.scope, "embd", "list", api.served_name(request.model))
        check_dimensions(request.dimensions, api.config.model)
        call = pooling_call(http, api, request)
        embedded = await embed(http, api, request, call, await _texts(api, request, call))
        normalize = api.config.model.pooling.normalize if request.normalize is None else request.normalize
        vectors = [finished(vector, normalize, request.dimensions) for vector in embedded.vectors]
        usage = embedding_usage(embedded, api.server.enable_prompt_tokens_details)
        content = await embeddings_body(head, vectors, request.encoding_format, usage)
        return Response(content, media_type="application/json")

    return router


async def _texts(api: ApiServer, request: AnyEmbeddingRequest, call: Call) -> Texts:
    """What is to become vectors; a conversation as the prompt that it makes, with room kept while it is made."""
    if isinstance(request, EmbeddingChatRequest):
        with prompts_are("messages"):
            call.ask(1)
        prompt, call.rendered_at = await encode_messages(api, request, is_answered=False)
        return Texts([prompt], "messages")
    assert isinstance(request, EmbeddingRequest)
    return Texts(request.input, "input")
