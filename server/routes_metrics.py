"""/metrics: made by the Observer, passed on as it is."""

from fastapi import APIRouter, Request, Response

from vllm_obs.server.errors import ApiError
from vllm_obs.server.observer_client import ObserverClient, ObserverUnavailableError
from vllm_obs.server.state import ApiServer

MAX_ACCEPT_CHARS = 1024


def metrics_router(api: ApiServer) -> APIRouter:
    """The route, bound to its server. It needs no key, and 503 is its only error."""
    router = APIRouter(tags=["metrics"])
    observer = ObserverClient("" if api.config.observability.recorder == "null" else api.config.run_dir)

    @router.get("/metrics")
    async def metrics(http: Request) -> Response:
        """What Prometheus scrapes, in the format that its Accept header asks for."""
        accept = http.headers.get("accept", "*/*")[:MAX_ACCEPT_CHARS].strip()
        try:
            answer = await observer.get("/metrics", accept.encode("latin-1"))
        except ObserverUnavailableError as error:
            raise ApiError(str(error), "not_ready") from None
        return Response(answer.body, headers={"content-type": answer.content_type})

    return router
