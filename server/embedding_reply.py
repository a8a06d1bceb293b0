"""The replies of /v1/embeddings, /score and /rerank."""

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from vllm_obs.engine.messages import Float32Array
from vllm_obs.server.embedding_run import Embedded
from vllm_obs.server.reply_head import ReplyHead
from vllm_obs.server.schema_embeddings import RerankRequest

_VECTORS_A_TURN = 32
"""After so many are written others have their turn on the event loop."""


async def embeddings_body(
    head: ReplyHead, vectors: Sequence[Float32Array], encoding_format: str, usage: dict[str, Any]
) -> bytes:
    """The JSON of the reply, numbers in the fewest digits that tell their float32 apart."""
    rows = []
    for index, vector in enumerate(vectors):
        written = _base64(vector) if encoding_format == "base64" else vector
        row = {"index": index, "object": "embedding", "embedding": written}
        rows.append(orjson.dumps(row, option=orjson.OPT_SERIALIZE_NUMPY))
        if index % _VECTORS_A_TURN == _VECTORS_A_TURN - 1:
            await asyncio.sleep(0)
    begin = orjson.dumps(head.fields())[:-1]
    return b"".join((begin, b',"data":[', b",".join(rows), b'],"usage":', orjson.dumps(usage), b"}"))


def _base64(vector: Float32Array) -> str:
    """float32, the lowest byte first, as the openai client reads it."""
    return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode("ascii")


def score_reply(head: ReplyHead, scores: Sequence[float], usage: dict[str, Any]) -> dict[str, Any]:
    """A score for each pair, in their order."""
    rows = [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)]
    return {**head.fields(), "data": rows, "usage": usage}


def rerank_reply(
    head: ReplyHead, request: RerankRequest, scores: Sequence[float], usage: dict[str, Any]
) -> dict[str, Any]:
    """The best documents first; of equals the one that came first."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    return {
        "id": head.id,
        "model": head.model,
        "usage": usage,
        "results": [_result(request, index, scores[index]) for index in order[: request.top_n or None]],
    }


def _result(request: RerankRequest, index: int, score: float) -> dict[str, Any]:
    document = {"document": {"text": request.documents[index]}} if request.return_documents else {}
    return {"index": index, **document, "relevance_score": score}


def embedding_usage(embedded: Embedded, with_details: bool) -> dict[str, Any]:
    """Token counts: what was read is all there is."""
    details = {"cached_tokens": embedded.num_cached_tokens} if with_details else None
    return {
        "prompt_tokens": embedded.num_prompt_tokens,
        "total_tokens": embedded.num_prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": details,
    }
