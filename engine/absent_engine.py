"""AbsentEngine: stands in the place of an engine that is not there yet."""

import asyncio

from vllm_obs.engine.client_async import AsyncMPClient, Said
from vllm_obs.engine.engine_sockets import Route
from vllm_obs.engine.engine_titles import engine_title
from vllm_obs.engine.errors import EngineDeadError
from vllm_obs.engine.messages import EngineCoreRequest


class AbsentEngine(AsyncMPClient):
    """Is down until another takes its place, says nothing, and has no facts, no process and no sockets."""

    def __init__(self, engine_index: int) -> None:
        self._route = Route(engine_index=engine_index, generation=-1)

    @property
    def engine_index(self) -> int:
        """Which of the engines of this run it stands for."""
        return self._route.engine_index

    @property
    def generation(self) -> int:
        """Before the first."""
        return self._route.generation

    @property
    def dead_cause(self) -> str | None:
        """It never lived."""
        return f"{engine_title(self.engine_index)} is not there yet"

    @property
    def num_dropped(self) -> dict[str, int]:
        """Nothing came."""
        return {}

    @property
    def has_stopped(self) -> bool:
        """There is no process."""
        return True

    @property
    def has_left_nothing(self) -> bool:
        """There is no process."""
        return True

    def say_into(self, outputs: "asyncio.Queue[Said]") -> None:
        """It says nothing."""

    async def add_request(self, request: EngineCoreRequest) -> None:
        """EngineDeadError."""
        raise EngineDeadError(self.dead_cause or "")

    def ask_to_stop(self) -> None:
        """There is no process."""

    def shutdown(self, timeout_seconds: float = 0) -> None:
        """There is no process."""
