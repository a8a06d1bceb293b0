"""/v1/embeddings."""

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.pooling.vectors import check_dimensions, finished
from vllm_obs.server.body import read_body
from vllm_obs.server.embedding_reply import embedding_usage, embeddings_body
from vllm_obs.server.embedding_run import Texts, embed
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_embeddings import EmbeddingRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_request


def embeddings_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server."""
    router = APIRouter(tags=["embeddings"])

    @router.post("/v1/embeddings", **describe(EmbeddingRequest))
    async def create_embedding(http: Request) -> Response:
        """A vector of each text."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_request(EmbeddingRequest, body, api.server.limits.max_json_depth)
        head = ReplyHead.of(api, http.scope, "embd", "list", api.served_name(request.model))
        check_dimensions(request.dimensions, api.config.model)
        embedded = await embed(http, api, request, Texts(request.input, "input"))
        normalize = api.config.model.pooling.normalize if request.normalize is None else request.normalize
        vectors = [finished(vector, normalize, request.dimensions) for vector in embedded.vectors]
        usage = embedding_usage(embedded, api.server.enable_prompt_tokens_details)
        content = await embeddings_body(head, vectors, request.encoding_format, usage)
        return Response(content, media_type="application/json")

    return router
