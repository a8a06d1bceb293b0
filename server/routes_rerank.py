"""/score and /rerank: texts compared by the cosine of their vectors."""

from fastapi import APIRouter, Request, Response

from vllm_obs.engine.pooling.vectors import cosines
from vllm_obs.server.body import read_body
from vllm_obs.server.embedding_reply import embedding_usage, rerank_reply, score_reply
from vllm_obs.server.embedding_run import Embedded, Texts, embed, pooling_call
from vllm_obs.server.errors import ApiError
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import describe
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.request_id import adopt_label
from vllm_obs.server.schema_embeddings import PoolingRequest, RerankRequest, ScoreRequest
from vllm_obs.server.state import ApiServer
from vllm_obs.server.validation import parse_request

SCORE_PATHS = ("/score", "/v1/score")
RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")


def rerank_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server."""
    router = APIRouter(tags=["rerank"])

    async def create_score(http: Request) -> Response:
        """How alike the texts of each pair are."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_request(ScoreRequest, body, api.server.limits.max_json_depth)
        adopt_label(http.scope["state"], request.request_id)
        head = ReplyHead.of(api, http.scope, "score", "list", api.served_name(request.model))
        _check_pairs(request)
        scores, embedded = await _compare(http, api, request, (request.text_1, request.text_2), "text_2")
        return JsonReply(score_reply(head, scores, _usage(api, embedded)))

    async def create_rerank(http: Request) -> Response:
        """The documents in the order in which they are like the query."""
        body = await read_body(http.scope, http.receive, api.server.limits)
        request = await parse_request(RerankRequest, body, api.server.limits.max_json_depth)
        adopt_label(http.scope["state"], request.request_id)
        head = ReplyHead.of(api, http.scope, "rerank", "list", api.served_name(request.model))
        sides = ([request.query], request.documents)
        scores, embedded = await _compare(http, api, request, sides, "documents")
        return JsonReply(rerank_reply(head, request, scores, _usage(api, embedded)))

    for path in SCORE_PATHS:
        router.post(path, **describe(ScoreRequest))(create_score)
    for path in RERANK_PATHS:
        router.post(path, **describe(RerankRequest))(create_rerank)
    return router


def _check_pairs(request: ScoreRequest) -> None:
    num_first, num_second = len(request.text_1), len(request.text_2)
    if num_first not in (1, num_second):
        message = f"text_1 has {num_first} texts and text_2 has {num_second}; it is one for all, or one for each"
        raise ApiError(message, "invalid_value", param="text_1")


async def _compare(
    http: Request, api: ApiServer, request: PoolingRequest, sides: tuple[list[str], list[str]], param: str
) -> tuple[list[float], Embedded]:
    """The cosines of the pairs, one text of the first side with all of the second where it is alone."""
    first, second = sides
    call = pooling_call(http, api, request)
    embedded = await embed(http, api, request, call, Texts([*first, *second], param))
    return cosines(embedded.vectors[: len(first)], embedded.vectors[len(first) :]), embedded


def _usage(api: ApiServer, embedded: Embedded) -> dict[str, object]:
    return embedding_usage(embedded, api.server.enable_prompt_tokens_details)
