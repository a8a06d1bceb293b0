"""The FastAPI application: routes inside, pure ASGI layers around them."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from vllm_obs import __version__
from vllm_obs.server.access_log import show_routes_only
from vllm_obs.server.admission import Admission
from vllm_obs.server.anthropic_paths import envelope_of
from vllm_obs.server.auth import Authentication
from vllm_obs.server.boundary import ErrorBoundary
from vllm_obs.server.cors import CrossOrigin
from vllm_obs.server.direct_routes import DirectRoutes
from vllm_obs.server.docs_page import add_docs
from vllm_obs.server.errors import ApiError
from vllm_obs.server.openapi import install_openapi
from vllm_obs.server.request_label import RequestLabel
from vllm_obs.server.request_record import RequestRecord
from vllm_obs.server.routes_chat import chat_router
from vllm_obs.server.routes_chat_batch import chat_batch_router
from vllm_obs.server.routes_completion import completion_router
from vllm_obs.server.routes_embeddings import embeddings_router
from vllm_obs.server.routes_health import health_router
from vllm_obs.server.routes_messages import messages_router
from vllm_obs.server.routes_metrics import metrics_router
from vllm_obs.server.routes_models import models_router
from vllm_obs.server.routes_profile import profile_router
from vllm_obs.server.routes_render import render_router
from vllm_obs.server.routes_rerank import rerank_router
from vllm_obs.server.routes_responses import responses_router
from vllm_obs.server.routes_tokenize import tokenize_router
from vllm_obs.server.state import ApiServer


def build_app(api: ApiServer) -> FastAPI:
    """One server's application. From outside in: record, label, cross-origin, errors, keys, admission, routes."""
    server = api.server
    routes: list[BaseRoute] = []
    app = FastAPI(
        title="vllm-obs",
        version=__version__,
        redirect_slashes=False,
        middleware=[
            Middleware(RequestRecord, api=api, routes=routes),
            Middleware(RequestLabel, api=api),
            Middleware(
                CrossOrigin, allowed_origins=server.allowed_origins, allow_credentials=server.allow_credentials
            ),
            Middleware(ErrorBoundary),
            Middleware(Authentication, keys=api.keys),
            Middleware(Admission, api=api),
            Middleware(DirectRoutes, routes=routes),
        ],
        exception_handlers={HTTPException: _refuse},
        **_documents(server.disable_fastapi_docs),
        **_NO_TELEMETRY,
    )
    if not server.disable_fastapi_docs:
        add_docs(app)
    routes += app.routes
    for make_router in _ROUTERS:
        router = make_router(api)
        app.include_router(router)
        routes += router.routes
    install_openapi(app)
    show_routes_only(routes, server.root_path)
    return app


_ROUTERS = (
    completion_router,
    chat_router,
    chat_batch_router,
    messages_router,
    responses_router,
    embeddings_router,
    rerank_router,
    models_router,
    tokenize_router,
    render_router,
    health_router,
    metrics_router,
    profile_router,
)

_NO_TELEMETRY: dict[str, Any] = {
    "telemetry": {"tracing": False, "metrics": False, "logs": False, "auto_configure": False}
}
"""What is observed here is observed by us; older FastAPI versions ignore the argument."""


def _documents(are_disabled: bool) -> dict[str, Any]:
    """FastAPI's own pages load scripts from elsewhere; `docs_page` needs none."""
    return {"docs_url": None, "redoc_url": None, **({"openapi_url": None} if are_disabled else {})}


async def _refuse(request: Request, error: Exception) -> Response:
    """The router's own refusals: no such path, or another method."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        refusal = ApiError(f"this path does not take {request.method[:16]}", "method_not_allowed")
    else:
        refusal = ApiError("there is nothing at this path", "not_found")
    refusal.envelope = envelope_of(request.scope)
    request.scope["state"]["reason"] = refusal.reason
    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    return Response(refusal.body(), refusal.status, headers=headers | dict(error.headers or {}))
