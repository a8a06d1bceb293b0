"""/v1/models: which names this server answers to."""

from typing import Any

from fastapi import APIRouter, Response

from vllm_obs.server.errors import ApiError, shown
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.openapi import errors
from vllm_obs.server.request_id import new_id
from vllm_obs.server.state import ApiServer


def models_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server."""
    router = APIRouter(tags=["models"], responses=errors())
    cards = {name: _card(api, name) for name in api.config.model.served_model_names}

    @router.get("/v1/models")
    async def list_models() -> Response:
        """All names."""
        return JsonReply({"object": "list", "data": list(cards.values())})

    @router.get("/v1/models/{model_id:path}")
    async def retrieve_model(model_id: str) -> Response:
        """One name; it may hold slashes."""
        if model_id not in cards:
            raise ApiError(f"no model {shown(model_id)} here", "model_not_found", param="model")
        return JsonReply(cards[model_id])

    return router


def _card(api: ApiServer, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": api.created,
        "owned_by": "vllm-obs",
        "root": api.config.model.model,
        "parent": None,
        "max_model_len": api.config.model.max_model_len,
        "permission": [_permission(api.created)],
    }


def _permission(created: int) -> dict[str, Any]:
    return {
        "id": f"modelperm-{new_id()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
