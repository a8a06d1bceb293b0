"""The gate between the edge and the routes: who is let in, until when, and how many are inside."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from vllm_obs.server.connection_room import no_room
from vllm_obs.server.deadline import deadline_of
from vllm_obs.server.entry import Entry, gives_work
from vllm_obs.server.public_paths import ALWAYS_ANSWERED, PUBLIC, route_path
from vllm_obs.server.state import ApiServer


class Admission:
    """Refuses with 503 while the engine loads, drains or is gone, and with 429 while its queue is full.

    On a connection over the limit only what needs no key is answered.

    Counts the requests it lets in, and puts into the state of each its `deadline` (None for none), and an `entry`
    where it is for the engine.
    """

    def __init__(self, app: ASGIApp, api: ApiServer) -> None:
        self.app = app
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] == "http" and scope["state"].get("is_spare") and route_path(scope) not in PUBLIC:
            raise no_room()
        if scope["type"] != "http" or route_path(scope) in ALWAYS_ANSWERED:
            await self.app(scope, receive, send)
            return
        refusal = self._api.refusal()
        if refusal is not None:
            raise refusal
        state = scope["state"]
        state["deadline"] = deadline_of(scope["headers"], state["received_at"], self._api.server.request_timeout)
        with self._entered(scope):
            await self.app(scope, receive, send)

    @contextmanager
    def _entered(self, scope: Scope) -> Iterator[None]:
        entry = None
        if gives_work(scope):
            entry = scope["state"]["entry"] = Entry(self._api.engine.llm.queue.place(), self._api.pressure)
            entry.look()
        self._api.num_open += 1
        try:
            yield
        finally:
            self._api.num_open -= 1
            if entry is not None:
                entry.place.close()
