"""Entry: one request's way to the engine's queue, refused as early as it is known that there is no room."""

from starlette.types import Scope

from vllm_obs.engine.frontend.front_queue import Place
from vllm_obs.server.anthropic_paths import MESSAGES
from vllm_obs.server.pressure import Pressure
from vllm_obs.server.public_paths import route_path

GENERATING = frozenset(
    {
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        MESSAGES,
        "/v1/responses",
        "/v1/embeddings",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
    }
)
"""The paths whose POST gives the engine work. A test holds them to the routes."""


class Entry:
    """Asked twice: before the body is read, and when it is known how many sequences the request has.

    From then on room is kept for them, until they are queued or the request is over (`place.close()`).
    """

    def __init__(self, place: Place, pressure: Pressure) -> None:
        self.place = place
        self._pressure = pressure

    def look(self) -> None:
        """ApiError or OverloadedError, both 429, where no request is let in."""
        self._pressure.check()
        self.place.look()

    def ask(self, num_sequences: int, priority: int) -> None:
        """Keep room for so many sequences in all; as `look`, and RequestError where there is never so much."""
        self._pressure.check(num_sequences, priority)
        self.place.grow_to(num_sequences)


def gives_work(scope: Scope) -> bool:
    """Whether a request is one for the engine."""
    return scope["method"] == "POST" and route_path(scope) in GENERATING
