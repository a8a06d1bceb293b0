"""/start_profile and /stop_profile, on the API's port only where --profiler-config opens them."""

from fastapi import APIRouter, Depends, Request, Response

from vllm_obs.server.errors import ApiError
from vllm_obs.server.json_reply import JsonReply
from vllm_obs.server.profiles import ProfileRequest
from vllm_obs.server.state import ApiServer


def profile_router(api: ApiServer) -> APIRouter:
    """The routes, bound to their server; none where they are not opened: 404, as for any other path."""
    router = APIRouter(tags=["profiling"])
    if not api.server.profiler_config.is_open:
        return router

    async def refuse_pages(http: Request) -> None:
        """Browsers name the page with every POST: none may give orders unless it was named at the start.

        That a page's origin is this very host proves nothing: its name may have been bound to our address.
        """
        origins = http.headers.getlist("origin")
        if any(origin not in api.server.allowed_origins for origin in origins):
            raise ApiError("pages of this origin may not give orders to the server", "forbidden")

    @router.post("/start_profile", dependencies=[Depends(refuse_pages)])
    async def start_profile() -> Response:
        """Begin a profile of the workers' operators; it ends by /stop_profile or at its bounds."""
        order = await api.profiles.start(ProfileRequest())
        return JsonReply(
            {
                "profile": order.profile,
                "directory": order.directory,
                "max_steps": order.steps,
                "max_seconds": order.seconds,
            }
        )

    @router.post("/stop_profile", dependencies=[Depends(refuse_pages)])
    async def stop_profile() -> Response:
        """End it. Long ones are written on after the answer."""
        is_written = await api.profiles.stop()
        return JsonReply({"state": "written" if is_written else "writing"})

    return router
